/** What the guardrails judge: each arm's last minute, and the arms that they have rolled back. */

import { count, percent, short, when } from "../lib/format.js";
import { html } from "../lib/html.js";

/** @typedef {import("../lib/types.js").Experiment} Experiment */
/** @typedef {import("../lib/types.js").Action} Action */

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
