/** An experiment's arms and their units, its guardrails, and its log. */

import { count, exact, percent, short, when } from "../lib/format.js";
import { html } from "../lib/html.js";

/** @typedef {import("./types.js").Experiment} Experiment */
/** @typedef {import("./types.js").Report} Report */
/** @typedef {import("./types.js").Action} Action */

/** @param {{one: Experiment, report: Report | null}} props */
export function Arms({ one, report }) {
  const all = one.arms.reduce((sum, arm) => sum + arm.exposures, 0);
  const weights = one.arms.reduce((sum, arm) => sum + arm.weight, 0);
  const ratio = report?.sample_ratio;
  return html`
    <section>
      <h2>Arms and their units</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Arms">
        <table class="plain">
          <thead><tr><th scope="col">arm</th><th scope="col">variant</th><th scope="col">share planned</th>
            <th scope="col">units exposed</th><th scope="col">share</th><th scope="col"></th></tr></thead>
          <tbody>${one.arms.map((arm) => html`
            <tr><th scope="row">${arm.name}${arm.control && arm.name !== "control" ? html`<span class="soft"> control</span>` : null}</th>
              <td><code>${arm.variant}</code></td><td>${percent(arm.weight / weights)}</td><td>${count(arm.exposures)}</td>
              <td>${all ? percent(arm.exposures / all, 1) : "–"}
                <span class="share"><i style=${{ width: `${all ? (100 * arm.exposures) / all : 0}%` }}></i></span></td>
              <td>${one.rolled_back.includes(arm.name) ? html`<b class="down">rolled back</b>` : null}</td></tr>`)}</tbody>
        </table>
      </div>
      <p class=${ratio?.alarm ? "wrong" : "soft"}>
        ${ratio ? ratio.text : one.sample_ratio_p === null ? "Sample ratio: no unit since the last change."
          : `Sample ratio: anytime-valid p ${short(one.sample_ratio_p, 2)}.`}
      </p>
    </section>`;
}

/** @param {{one: Experiment, history: Action[]}} props */
export function Guardrails({ one, history }) {
  const trips = history.filter((action) => action.kind === "rollback");
  const number = (/** @type {number | null} */ value, /** @type {(value: number) => string} */ write) =>
    value === null ? "–" : write(value);
  return html`
    <section>
      <h2>Guardrails</h2>
      ${trips.map((trip) => html`<p class="trip"><b>${trip.arm}</b> was rolled back by <b>${trip.reason}</b>, ${when(trip.time)} UTC:
        ${" "}${trip.detail}</p>`)}
      <div class="scroll" tabindex="0" role="region" aria-label="Guardrail windows">
        <table class="plain">
          <caption>The present window on the replica that answered.${trips.length ? "" : " No guardrail has tripped."}</caption>
          <thead><tr><th scope="col">arm</th><th scope="col">requests</th><th scope="col">errors</th><th scope="col">p99</th>
            <th scope="col">score shift</th></tr></thead>
          <tbody>${one.guardrails.map((row) => html`
            <tr><th scope="row">${row.arm}</th><td>${count(row.requests)}</td><td>${number(row.error_rate, (v) => percent(v, 1))}</td>
              <td>${number(row.p99_ms, (v) => `${short(v)} ms`)}</td><td>${number(row.score_shift, (v) => short(v, 2))}</td></tr>`)}</tbody>
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
          <span class="soft"> by ${action.actor}</span> ${action.reason} <span class="soft">${action.detail}</span></li>`)}</ol>
    </section>`;
}
