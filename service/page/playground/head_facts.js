/** What the study found out about a head, and what the grid's shades and letters mean. */

import { activeColumn, drawn, offBy } from "../lib/columns.js";
import { count, isKnown, percent, roleLetter, roleName, signed } from "../lib/format.js";
import { html } from "../lib/html.js";
import { range } from "../lib/mask.js";
import { update } from "../lib/store.js";
import { scaleOf, stateOf } from "./grid_cell.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").HeadFinding} HeadFinding */

const METRICS = /** @type {const} */ ([
  ["qwk", "QWK"],
  ["ndcg10", "NDCG@10"],
  ["accuracy", "accuracy"],
]);

/** @param {{state: State, index: number | null}} props index: the head under the pointer or the focus */
export function HeadFacts({ state, index }) {
  const heads = state.facts?.model.heads ?? 1;
  if (index === null) return html`<div class="facts"></div>`;
  const [layer, head] = [Math.floor(index / heads), index % heads];
  const weight = drawn(state, activeColumn(state)).weights[index];
  const finding = state.facts?.study?.heads[index] ?? null;
  const look = () => update({ view: "attention", attention: { ...state.attention, layer, head } });
  return html`
    <div class="facts">
      <p>
        <b>Layer ${layer} · head ${head}</b>
        <span class="soft"> ${stateOf(weight, offBy(state, index))}</span>
        <button class="quiet" onClick=${look}>See its attention</button>
      </p>
      ${finding ? html`<${Finding} finding=${finding} />` : null}
    </div>`;
}

/** @param {{finding: HeadFinding}} props */
function Finding({ finding }) {
  const { p_adjusted: p } = finding;
  const roles = Object.entries(finding.roles);
  return html`
    <p class="soft">With this head alone off:</p>
    <dl class="effects">
      ${METRICS.map(([metric, name]) => {
        const [low, high] = finding.interval[metric];
        const interval = isKnown(low) && isKnown(high) ? `${signed(low, 3)} to ${signed(high, 3)}` : "no interval";
        return html`<div><dt>${name}</dt><dd>${signed(finding.delta[metric], 3)} <span class="soft"> ${interval}</span></dd></div>`;
      })}
    </dl>
    <p class="soft">
      ${isKnown(p)
        ? `${p < 0.05 ? "More than chance" : "No more than chance"} once all heads are looked at (adjusted p ${p.toFixed(2)}).`
        : "The study has too few queries to tell this from chance."}${" "}
      ${roles.map(
        ([role, share]) => html`<b>${roleName(role)}</b>: ${percent(share)} of its attention beyond chance. `,
      )}
    </p>`;
}

/** @param {{state: State}} props */
export function Legend({ state }) {
  const study = state.facts?.study;
  if (!study) {
    return html`<p class="legend soft">
      The heads are unshaded: there is no study of this model. <code>headroom study</code> makes one.
    </p>`;
  }
  const roles = [...new Set(study.heads.flatMap((one) => Object.keys(one.roles)))];
  return html`
    <div class="legend soft">
      <span>QWK lost with the head alone off: 0</span>
      <span class="ramp" aria-hidden="true">${range(9).map((shade) => html`<i class=${`shade-${shade}`}></i>`)}</span>
      <span>${scaleOf(study).toFixed(3)}</span>
      ${roles.map((role) => html`<span><b class="letter">${roleLetter(role)}</b> ${roleName(role)}</span>`)}
      <span class="source">Intervals are 95 %, for one head at a time, from ${count(study.pairs)} pairs of ${study.queries} queries.</span>
    </div>`;
}
