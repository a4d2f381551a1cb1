/** Reads the Prometheus text format, and computes what the live view shows from scrapes that follow each other. */

/** @typedef {{labels: Record<string, string>, value: number}} Sample */
/** @typedef {Map<string, Sample[]>} Scrape samples by metric name */

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** @param {string} text @returns {Scrape} */
export function parse(text) {
  /** @type {Scrape} */
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (!match) continue;
    const [, name, labels = "", value] = match;
    const sample = { labels: labelsOf(labels), value: value === "+Inf" ? Infinity : Number(value) };
    const samples = found.get(name);
    if (samples) samples.push(sample);
    else found.set(name, [sample]);
  }
  return found;
}

/** @param {string} text */
function labelsOf(text) {
  const escapes = /** @type {Record<string, string>} */ ({ n: "\n", '"': '"', "\\": "\\" });
  return Object.fromEntries(
    [...text.matchAll(LABEL)].map(([, name, value]) => [name, value.replace(/\\(.)/g, (_, char) => escapes[char] ?? char)]),
  );
}

/**
 * @param {Scrape} scrape @param {string} name @param {Record<string, string>} [wanted] labels it must have
 * @returns {Sample[]}
 */
export function samples(scrape, name, wanted = {}) {
  const entries = Object.entries(wanted);
  return (scrape.get(name) ?? []).filter(({ labels }) => entries.every(([label, value]) => labels[label] === value));
}

/** @param {Scrape} scrape @param {string} name @param {Record<string, string>} [wanted] @returns {number} */
export function total(scrape, name, wanted = {}) {
  return samples(scrape, name, wanted).reduce((sum, { value }) => sum + (Number.isFinite(value) ? value : 0), 0);
}

/**
 * As `total`, for each value of a label, in one pass: a histogram has hundreds of buckets for each variant.
 * @param {Scrape} scrape @param {string} name @param {string} label @param {Record<string, string>} wanted
 * @returns {Map<string, number>}
 */
function totals(scrape, name, label, wanted) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const { labels, value } of samples(scrape, name, wanted)) {
    sums.set(labels[label], (sums.get(labels[label]) ?? 0) + (Number.isFinite(value) ? value : 0));
  }
  return sums;
}

/**
 * How much a counter grew. After a restart it begins at 0 again, and its value is what it grew.
 * @param {Scrape} before @param {Scrape} after @param {string} name @param {Record<string, string>} [wanted]
 */
export function growth(before, after, name, wanted = {}) {
  return grown(total(before, name, wanted), total(after, name, wanted));
}

/** @param {number} from @param {number} to */
function grown(from, to) {
  return to >= from ? to - from : to;
}

/** @param {Scrape} scrape @param {string} name @param {string} label @returns {string[]} the label's values */
export function valuesOf(scrape, name, label) {
  return [...new Set(samples(scrape, name).map(({ labels }) => labels[label]))].sort();
}

/**
 * A quantile of what a histogram took up between two scrapes, by linear interpolation in its bucket.
 * @param {Scrape} before @param {Scrape} after @param {string} name without `_bucket` @param {number} quantile
 * @param {Record<string, string>} [wanted]
 * @returns {number | null} null where it took up nothing
 */
export function quantileOf(before, after, name, quantile, wanted = {}) {
  const counts = [...bucketGrowth(before, after, name, wanted)]
    .map(([le, count]) => ({ bound: le === "+Inf" ? Infinity : Number(le), count }))
    .sort((a, b) => a.bound - b.bound);
  const all = counts.at(-1)?.count ?? 0;
  if (!all) return null;
  const rank = quantile * all;
  const at = counts.findIndex(({ count }) => count >= rank);
  const [low, below] = at > 0 ? [counts[at - 1].bound, counts[at - 1].count] : [0, 0];
  const { bound, count } = counts[at];
  if (bound === Infinity) return low;
  return count > below ? low + ((bound - low) * (rank - below)) / (count - below) : bound;
}

/**
 * @param {Scrape} before @param {Scrape} after @param {string} name of a histogram @param {Record<string, string>} wanted
 * @returns {Map<string, number>} how much each bucket grew, by its label
 */
function bucketGrowth(before, after, name, wanted) {
  const earlier = totals(before, `${name}_bucket`, "le", wanted);
  const later = totals(after, `${name}_bucket`, "le", wanted);
  return new Map([...later].map(([le, value]) => [le, grown(earlier.get(le) ?? 0, value)]));
}

/**
 * @param {Scrape} before @param {Scrape} after @param {string} name @param {Record<string, string>} [wanted]
 * @returns {number | null} the mean of what a histogram took up
 */
export function meanOf(before, after, name, wanted = {}) {
  const count = growth(before, after, `${name}_count`, wanted);
  return count ? growth(before, after, `${name}_sum`, wanted) / count : null;
}

/** @typedef {{time: number, scrape: Scrape}} Taken */

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

/** The routes that run pairs through a network. Not TEI's `/`: the page is loaded from there, too. */
export const SCORING = new Set([
  "/v1/score", "/v1/compare", "/v1/attention", "/v1/condense",
  "/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking",
  "/predict", "/score", "/v2/models/{model:path}/infer",
]);

/** @param {Taken[]} taken @param {string} variant empty: all @returns {Figures[]} one for each scrape but the first */
export function figures(taken, variant) {
  const wanted = /** @type {Record<string, string>} */ (variant ? { variant } : {});
  return taken.slice(1).map((now, i) => {
    const before = earlier(taken, i + 1);
    const seconds = now.time - before.time;
    const rate = (/** @type {string} */ name, /** @type {Record<string, string>} */ labels = {}) =>
      growth(before.scrape, now.scrape, name, labels) / seconds;
    const quantile = (/** @type {number} */ q) => quantileOf(before.scrape, now.scrape, "headroom_pair_seconds", q, wanted);
    const reasons = valuesOf(now.scrape, "headroom_shed_total", "reason");
    const shed = Object.fromEntries(reasons.map((reason) => [reason, rate("headroom_shed_total", { reason })]));
    return {
      time: now.time,
      requests: scoringRate(before, now),
      pairs: rate("headroom_pairs_total", wanted),
      p50: quantile(0.5),
      p99: quantile(0.99),
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

/** @param {Taken} before @param {Taken} now @returns {number} requests per second that had something scored */
function scoringRate(before, now) {
  const routes = valuesOf(now.scrape, "headroom_requests_total", "route").filter((route) => SCORING.has(route));
  const counts = routes.map((route) => growth(before.scrape, now.scrape, "headroom_requests_total", { route }));
  return counts.reduce((sum, one) => sum + one, 0) / (now.time - before.time);
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
    const scored = growth(before.scrape, now.scrape, "headroom_pairs_total", { variant: name });
    const quantile = (/** @type {number} */ q) =>
      quantileOf(before.scrape, now.scrape, "headroom_pair_seconds", q, { variant: name });
    return [{
      name,
      heads: heads === undefined || Number.isNaN(heads) ? null : heads,
      rate: now.time > before.time ? scored / (now.time - before.time) : 0,
      share: all > 0 ? scored / all : null,
      p50: quantile(0.5),
      p99: quantile(0.99),
      total: pairs,
    }];
  });
}
