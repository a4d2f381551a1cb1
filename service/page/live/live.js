/** The load on this node as it is: rates, latency by stage, batches, queue and refusals, by variant. */

import { useEffect, useMemo, useState } from "../vendor/hooks.js";
import { call, text } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { count, percent, short } from "../lib/format.js";
import { html } from "../lib/html.js";
import { usePolling } from "../lib/polling.js";
import { Trouble } from "../lib/trouble.js";
import { figures, parse, STAGES, variantRows } from "./prometheus.js";

/** @typedef {import("./prometheus.js").Figures} Figures */
/** @typedef {{time: number, scrape: import("./prometheus.js").Scrape}} Taken */

const EVERY_MS = 2000;
const KEPT = 151; // five minutes
const OLD_S = 8; // values that are older look old
const PAUSE_S = 30; // after a longer look at another view, the service knows what came in between

/** @type {Taken[]} What was taken so far; it outlives a look at another view. */
let taken = [];

/** @param {AbortSignal} signal */
async function take(signal) {
  const last = taken.at(-1);
  if (!last || Date.now() / 1000 - last.time > PAUSE_S) {
    const { now, scrapes } = await call("playground/history", { signal });
    const ahead = Date.now() / 1000 - now; // of the service's clock
    taken = scrapes.map((/** @type {[number, string]} */ [time, lines]) => ({ time: time + ahead, scrape: parse(lines) }));
  }
  const scrape = parse(await text("metrics", { signal }));
  taken = [...taken, { time: Date.now() / 1000, scrape }].slice(-KEPT);
  return taken;
}

export function Live() {
  const { value, problem, refresh } = usePolling(take, EVERY_MS, []);
  const [chosen, choose] = useState("");
  const all = value ?? taken;
  const rows = useMemo(() => (all.length ? variantRows(all) : []), [all]);
  const variant = rows.some(({ name }) => name === chosen) ? chosen : ""; // it may have left the config
  const history = useMemo(() => figures(all, variant), [all, variant]);
  if (!all.length) {
    return problem && problem.status !== 401
      ? html`<${Trouble} problem=${problem} retry=${refresh} automatic=${false} />`
      : html`<p class="empty" role="status">Loading…</p>`;
  }
  return html`
    <${Aged} time=${all[all.length - 1].time}>
      ${problem ? html`<${Trouble} problem=${problem} retry=${refresh} automatic=${false} />` : null}
      <${Tiles} last=${history.at(-1)} variant=${variant} />
      <${Variants} rows=${rows} chosen=${variant} choose=${choose} />
      <${Charts} history=${history} variant=${variant} />
      <p class="soft">From /metrics of this node, every 2 s, all replicas together. Rates and latencies are those of the last 20 s.
        What this page has scored, in any browser, does not count in them.</p>
    <//>`;
}

/**
 * What is shown with its age. The clock draws only this anew, and what is in it stays as it is.
 * @param {{time: number, children?: unknown}} props time: when the values were taken
 */
function Aged({ time, children }) {
  const age = useClock() - time;
  const isOld = age > OLD_S;
  return html`
    <div class=${`live${isOld ? " old" : ""}`}>
      <p class=${isOld ? "wrong" : "unseen"} role="status">${isOld ? `These values are ${Math.round(age)} s old.` : ""}</p>
      ${children}
    </div>`;
}

/** @returns {number} the time, in seconds since 1970; it is drawn anew every second */
function useClock() {
  const [, tick] = useState(0);
  useEffect(() => {
    const ticking = setInterval(() => tick(Date.now()), 1000);
    return () => clearInterval(ticking);
  }, []);
  return Date.now() / 1000;
}

/** @param {{last: Figures | undefined, variant: string}} props variant: the one that pairs are counted of; empty: all */
function Tiles({ last, variant }) {
  const which = variant ? `, ${variant}` : "";
  const tiles = /** @type {[string, string, string][]} */ ([
    ["Requests", last ? short(last.requests) : "–", "per second"],
    [`Pairs${which}`, last ? short(last.pairs) : "–", "per second"],
    [`Pair time, p99${which}`, last?.p99 == null ? "–" : milliseconds(last.p99), "from admission to result"],
    ["Batch fill", last?.fill == null ? "–" : percent(last.fill), "mean, of the token budget"],
    ["Queue", last ? count(last.queue) : "–", "tokens waiting"],
    ["Refused", last ? short(last.refused) : "–", "per second"],
    ["Replicas", last ? count(last.ready) : "–", "ready on this node"],
  ]);
  return html`
    <dl class="tiles">${tiles.map(([name, value, unit]) => html`
      <div><dt>${name}</dt><dd>${value}</dd><dd class="soft">${unit}</dd></div>`)}</dl>`;
}

/** @param {{rows: ReturnType<typeof variantRows>, chosen: string, choose: (variant: string) => void}} props */
function Variants({ rows, chosen, choose }) {
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Variants">
      <table class="plain">
        <caption>By variant. <code>custom</code> stands for masks that requests bring along.</caption>
        <thead><tr><th scope="col">variant</th><th scope="col">heads on</th><th scope="col">pairs/s</th><th scope="col">share</th>
          <th scope="col">p50</th><th scope="col">p99</th><th scope="col">pairs in all</th></tr></thead>
        <tbody>${rows.map((row) => html`
          <tr><th scope="row"><button aria-pressed=${chosen === row.name} onClick=${() => choose(chosen === row.name ? "" : row.name)}>
              ${row.name}</button></th>
            <td>${row.heads ?? "–"}</td><td>${short(row.rate)}</td><td>${row.share === null ? "–" : percent(row.share)}</td>
            <td>${row.p50 === null ? "–" : milliseconds(row.p50)}</td><td>${row.p99 === null ? "–" : milliseconds(row.p99)}</td>
            <td>${count(row.total)}</td></tr>`)}</tbody>
      </table>
    </div>`;
}

/** @param {{history: Figures[], variant: string}} props */
function Charts({ history, variant }) {
  const times = history.map((one) => one.time);
  const follows = history.map((_, i) => i === 0 || times[i] - times[i - 1] <= PAUSE_S); // else the line has a gap
  const of = (/** @type {(one: Figures) => number | null} */ pick) => history.map((one, i) => (follows[i] ? pick(one) : null));
  const clock = (/** @type {number} */ time) => new Date(1000 * time).toLocaleTimeString("en-GB");
  const per = (/** @type {number} */ value) => short(value, 2);
  const which = variant ? `, ${variant}` : ", all variants";
  const reasons = [...new Set(history.flatMap((one) => Object.keys(one.shed)))];
  const met = reasons.filter((reason) => history.some((one) => one.shed[reason] > 0));
  return html`
    <div class="charts">
      <${Chart} label=${`Pairs per second${which}`} times=${times} clock=${clock} format=${per}
        series=${[{ name: "pairs", values: of((one) => one.pairs) }]} />
      <${Chart} label=${`Pair time${which}`} times=${times} clock=${clock} format=${milliseconds}
        series=${[{ name: "p50", values: of((one) => one.p50) }, { name: "p99", values: of((one) => one.p99) }]} />
      <${Chart} label="Mean time by stage, all requests" times=${times} clock=${clock} format=${milliseconds}
        series=${STAGES.map((stage) => ({ name: stage, values: of((one) => one.stages[stage]) }))} />
      <${Chart} label="Batch fill" times=${times} clock=${clock} format=${percent}
        series=${[{ name: "mean", values: of((one) => one.fill) }]} />
      <${Chart} label="Queue, tokens" times=${times} clock=${clock} format=${per}
        series=${[{ name: "waiting", values: of((one) => one.queue) }]} />
      <${Chart} label="Refused per second" times=${times} clock=${clock} format=${per}
        series=${[
          { name: "all", values: of((one) => one.refused) },
          ...met.map((reason) => ({ name: reason.replaceAll("_", " "), values: of((one) => one.shed[reason] ?? 0) })),
        ]} />
    </div>`;
}

/** @param {number} seconds @returns {string} in milliseconds below a second */
function milliseconds(seconds) {
  if (seconds >= 1) return `${short(seconds, 2)} s`;
  const value = 1000 * seconds;
  return `${short(value, value >= 100 ? 3 : 2)} ms`;
}
