/** An experiment's arms and their units, its shadow comparison, its guardrails, and its log. */

import { count, exact, percent, short, when } from "../lib/format.js";
import { html } from "../lib/html.js";

/** @typedef {import("../lib/types.js").Experiment} Experiment */
/** @typedef {import("../lib/types.js").Report} Report */
/** @typedef {import("../lib/types.js").Action} Action */

const MEASURES = /** @type {Record<string, string>} */ ({
  mean_delta: "mean score difference",
  mean_abs_delta: "mean |score difference|",
  rank_correlation: "rank correlation",
  top10_overlap: "overlap of the ten best",
  ndcg_loss: "NDCG@10 lost",
  seconds_delta: "time difference, seconds",
  order_changed: "share of lists in another order",
});

const UNBOUNDED = "seconds_delta"; // never has an interval

/** @param {{one: Experiment, report: Report | null}} props */
export function Arms({ one, report }) {
  if (one.kind === "interleave") return html`<${BothArms} one=${one} report=${report} />`;
  const all = one.arms.reduce((sum, arm) => sum + arm.exposures, 0);
  const weights = one.arms.reduce((sum, arm) => sum + arm.weight, 0);
  const ratio = report?.sample_ratio;
  return html`
    <section>
      <h2>Arms and their units</h2>
      ${report
        ? html`<${Progress} units=${all} planned=${report.planned_units} words="planned units" />`
        : null}
      <div class="scroll" tabindex="0" role="region" aria-label="Arms">
        <table class="plain">
          <thead><tr><th scope="col">arm</th><th scope="col">variant</th><th scope="col">units</th><th scope="col">share</th>
            <th scope="col">planned</th></tr></thead>
          <tbody>${one.arms.map((arm) => html`
            <tr><th scope="row">${arm.name}${arm.control && arm.name !== "control" ? html`<span class="soft"> control</span>` : null}
                ${one.rolled_back.includes(arm.name) ? html`<div class="down">rolled back</div>` : null}</th>
              <td><code>${arm.variant}</code></td><td>${count(arm.exposures)}</td>
              <td>${all ? percent(arm.exposures / all, 1) : "–"}</td><td>${percent(arm.weight / weights)}</td></tr>`)}</tbody>
        </table>
      </div>
      <p class=${ratio?.alarm ? "wrong" : "soft"}>
        ${ratio ? ratio.text : one.sample_ratio_p === null ? "Sample ratio: no unit yet."
          : `Sample ratio: anytime-valid p ${short(one.sample_ratio_p, 2)}.`}
      </p>
    </section>`;
}

/** @param {{one: Experiment, report: Report | null}} props the arms of interleaved lists, which each unit sees both of */
function BothArms({ one, report }) {
  const metric = report?.arms[0]?.metrics[0];
  return html`
    <section>
      <h2>Units</h2>
      ${report && metric
        ? html`<${Progress} units=${metric.units} planned=${report.planned_units} words="planned units have clicked a title of one arm" />`
        : null}
      <p><b>${count(one.arms[0].exposures)}</b> units see lists drawn from
        ${" "}${one.arms.map((arm, i) => html`${i ? " and " : ""}<b>${arm.name}</b> (<code>${arm.variant}</code>)`)}.
        ${one.rolled_back.length ? html`<span class="down"> ${one.rolled_back.join(", ")}: rolled back</span>` : null}</p>
    </section>`;
}

/** @param {{units: number, planned: number, words: string}} props */
function Progress({ units, planned, words }) {
  return html`<p class="progress"><span class="share"><i style=${{ width: `${Math.min(100, (100 * units) / planned)}%` }}></i></span>
    <span><b>${count(units)}</b> of ${count(planned)} ${words}</span></p>`;
}

/** @param {{report: Report, share: number}} props */
export function Shadow({ report, share }) {
  const arms = report.arms.filter((arm) => arm.shadow);
  return html`
    <section>
      <h2>Shadow</h2>
      ${arms.length
        ? arms.map(({ arm, shadow }) => shadow && html`<${ShadowOf} key=${arm} arm=${arm} shadow=${shadow} />`)
        : html`<p class="soft">${share ? "No request has been scored under both arms yet." : "Off: no requests are scored under both arms."}</p>`}
    </section>`;
}

/** @param {{arm: string, shadow: import("../lib/types.js").Shadow}} props */
function ShadowOf({ arm, shadow }) {
  return html`
    <p>${shadow.text}</p>
    <div class="scroll" tabindex="0" role="region" aria-label=${`Shadow of ${arm}`}>
      <table class="plain">
        <caption>${arm} against control</caption>
        <thead><tr><th scope="col">measure</th><th scope="col">mean</th><th scope="col">interval</th><th scope="col">units</th><th scope="col">requests</th></tr></thead>
        <tbody>${Object.entries(shadow.measures).map(([name, one]) => html`
          <tr><th scope="row">${MEASURES[name] ?? name}</th><td>${short(one.mean)}</td>
            <td>${one.low === null || one.high === null ? (name === UNBOUNDED ? "–" : "too few yet") : `${short(one.low)} to ${short(one.high)}`}</td>
            <td>${count(one.units)}</td><td>${count(one.requests)}</td></tr>`)}</tbody>
      </table>
    </div>`;
}

/** @param {{one: Experiment, history: Action[]}} props */
export function Guardrails({ one, history }) {
  const trips = history.filter((action) => action.kind === "rollback" && action.arm !== null);
  const replicas = Math.max(1, ...one.guardrails.map((row) => row.replicas ?? 1));
  const number = (/** @type {number | null} */ value, /** @type {(value: number) => string} */ write) =>
    value === null ? "–" : write(value);
  return html`
    <section>
      <h2>Guardrails</h2>
      ${trips.map((trip) => html`<p class="trip"><b>${trip.arm}</b> was rolled back by <b>${trip.reason}</b>, ${when(trip.time)} UTC:
        ${" "}${trip.detail}</p>`)}
      <div class="scroll" tabindex="0" role="region" aria-label="Guardrail windows">
        <table class="plain">
          <caption>The last minute on ${replicas === 1 ? "one replica" : `${count(replicas)} replicas`}.${trips.length ? "" : " No guardrail has tripped."}</caption>
          <thead><tr><th scope="col">arm</th><th scope="col">requests</th><th scope="col">errors</th><th scope="col">too slow</th>
            <th scope="col">score shift</th></tr></thead>
          <tbody>${one.guardrails.map((row) => html`
            <tr><th scope="row">${row.arm}</th><td>${count(row.requests)}</td><td>${number(row.error_rate, (v) => percent(v, 1))}</td>
              <td>${number(row.slow_rate, (v) => percent(v, 1))}</td><td>${number(row.score_shift, (v) => short(v, 2))}</td></tr>`)}</tbody>
        </table>
      </div>
    </section>`;
}

/** @param {{history: Action[]}} props */
export function Log({ history }) {
  if (!history.length) return null;
  return html`
    <section>
      <h2>Log</h2>
      <ol class="log">${[...history].reverse().map((action) => html`
        <li><span class="soft">${when(action.time)}</span> <b>${action.kind}</b> ${action.arm}
          ${action.traffic === null ? null : ` to ${exact(action.traffic)}`}
          <span class="soft"> by ${action.actor}${[action.reason, action.detail].some(Boolean) ? ":" : ""}</span>
          ${" "}${[action.reason, action.detail].filter(Boolean).join(", ")}</li>`)}</ol>
    </section>`;
}
