/** What the live page shows, computed from scrapes that follow each other. */

import { growth, meanOf, quantileOf, samples, total, valuesOf } from "./prometheus.js";

/** @typedef {{time: number, scrape: import("./prometheus.js").Scrape}} Taken */

/**
 * @typedef {object} Figures One moment; rates per second, times in seconds.
 * @property {number} time
 * @property {number} requests
 * @property {number} pairs
 * @property {number | null} p50
 * @property {number | null} p99
 * @property {number | null} fill
 * @property {number} queue
 * @property {number} refused
 * @property {number} ready
 * @property {Record<string, number | null>} stages
 * @property {Record<string, number>} shed
 */

export const STAGES = ["tokenize", "queue", "inference", "respond"];
const WINDOW_S = 20;

/** @param {Taken[]} taken @param {string} variant empty: all @returns {Figures[]} one for each scrape but the first */
export function figures(taken, variant) {
  const wanted = /** @type {Record<string, string>} */ (variant ? { variant } : {});
  return taken.slice(1).map((now, i) => {
    const before = earlier(taken, i + 1);
    const seconds = now.time - before.time;
    const rate = (/** @type {string} */ name, /** @type {Record<string, string>} */ labels = {}) =>
      growth(before.scrape, now.scrape, name, labels) / seconds;
    const reasons = valuesOf(now.scrape, "headroom_shed_total", "reason");
    const shed = Object.fromEntries(reasons.map((reason) => [reason, rate("headroom_shed_total", { reason })]));
    return {
      time: now.time,
      requests: scoringRate(before, now),
      pairs: rate("headroom_pairs_total", wanted),
      p50: quantileOf(before.scrape, now.scrape, "headroom_pair_seconds", 0.5, wanted),
      p99: quantileOf(before.scrape, now.scrape, "headroom_pair_seconds", 0.99, wanted),
      fill: meanOf(before.scrape, now.scrape, "headroom_batch_fill_ratio"),
      queue: total(now.scrape, "headroom_queue_tokens"),
      refused: Object.values(shed).reduce((sum, one) => sum + one, 0),
      ready: total(now.scrape, "headroom_ready"),
      stages: Object.fromEntries(
        STAGES.map((stage) => [stage, meanOf(before.scrape, now.scrape, "headroom_stage_seconds", { stage })]),
      ),
      shed,
    };
  });
}

/** @param {Taken} before @param {Taken} now @returns {number} requests per second without those of this page's looking */
function scoringRate(before, now) {
  const routes = valuesOf(now.scrape, "headroom_requests_total", "route");
  const counted = routes.filter((route) => route !== "/metrics" && !route.startsWith("/health/"));
  const grown = counted.map((route) => growth(before.scrape, now.scrape, "headroom_requests_total", { route }));
  return grown.reduce((sum, one) => sum + one, 0) / (now.time - before.time);
}

/** @param {Taken[]} taken @param {number} i @returns {Taken} the earliest one within the window */
function earlier(taken, i) {
  return taken.find((one, at) => at < i && taken[i].time - one.time <= WINDOW_S) ?? taken[i - 1];
}

/** @param {Taken[]} taken */
export function variantRows(taken) {
  const now = taken[taken.length - 1];
  const before = taken.length > 1 ? earlier(taken, taken.length - 1) : now;
  const names = new Set([
    ...valuesOf(now.scrape, "headroom_heads_on", "variant"),
    ...valuesOf(now.scrape, "headroom_pairs_total", "variant"),
  ]);
  const all = growth(before.scrape, now.scrape, "headroom_pairs_total");
  return [...names].flatMap((name) => {
    const heads = samples(now.scrape, "headroom_heads_on", { variant: name })[0]?.value;
    const pairs = total(now.scrape, "headroom_pairs_total", { variant: name });
    if (Number.isNaN(heads) && !pairs) return []; // it left the config
    const grown = growth(before.scrape, now.scrape, "headroom_pairs_total", { variant: name });
    const quantile = (/** @type {number} */ q) =>
      quantileOf(before.scrape, now.scrape, "headroom_pair_seconds", q, { variant: name });
    return [{
      name,
      heads: heads === undefined || Number.isNaN(heads) ? null : heads,
      rate: now.time > before.time ? grown / (now.time - before.time) : 0,
      share: all ? grown / all : null,
      p50: quantile(0.5),
      p99: quantile(0.99),
      total: pairs,
    }];
  });
}
