/** The paired comparison: the same requests scored under both arms, with no user affected. */

import { count, short } from "../lib/format.js";
import { html } from "../lib/html.js";

/** @typedef {import("./types.js").Report} Report */
/** @typedef {import("./types.js").Measure} Measure */

const MEASURES = /** @type {Record<string, string>} */ ({
  mean_delta: "mean score difference",
  mean_abs_delta: "mean |score difference|",
  rank_correlation: "rank correlation",
  top10_overlap: "overlap of the ten best",
  ndcg_loss: "NDCG@10 lost",
  seconds_delta: "time difference, seconds",
});

/** @param {{report: Report, share: number}} props */
export function Shadow({ report, share }) {
  const arms = report.arms.filter((arm) => arm.shadow);
  return html`
    <section>
      <h2>Shadow</h2>
      ${arms.length
        ? arms.map(({ arm, shadow }) => shadow && html`<${One} key=${arm} arm=${arm} shadow=${shadow} />`)
        : html`<p class="soft">${share ? "No request has been scored under both arms yet." : "Off: no requests are scored under both arms."}</p>`}
    </section>`;
}

/** @param {{arm: string, shadow: import("./types.js").Shadow}} props */
function One({ arm, shadow }) {
  return html`
    <p>${shadow.text}</p>
    <div class="scroll" tabindex="0" role="region" aria-label=${`Shadow of ${arm}`}>
      <table class="plain">
        <caption>${arm}, ${count(shadow.pairs)} pairs; |difference| of a pair: median ${short(shadow.abs_delta_p50, 2)},
          99 % below ${short(shadow.abs_delta_p99, 2)}</caption>
        <thead><tr><th scope="col">measure</th><th scope="col">mean</th><th scope="col">interval</th><th scope="col">units</th><th scope="col">requests</th></tr></thead>
        <tbody>${Object.entries(shadow.measures).map(([name, one]) => html`
          <tr><th scope="row">${MEASURES[name] ?? name}</th><td>${short(one.mean)}</td>
            <td>${one.low === null || one.high === null ? "too few yet" : `${short(one.low)} to ${short(one.high)}`}</td>
            <td>${count(one.units)}</td><td>${count(one.requests)}</td></tr>`)}</tbody>
      </table>
    </div>`;
}
