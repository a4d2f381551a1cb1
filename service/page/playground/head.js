/** One head: its cell in the grid, and what the study found out about it. Shade says what it is worth, shape whether it is on. */

import { activeColumn, drawn, drawnStudy, offBy } from "../lib/columns.js";
import { Term } from "../lib/explain.js";
import { mainChange, metricsOf } from "../lib/facts.js";
import { count, isKnown, mainLetter, percent, roleLetter, roleName, signed } from "../lib/format.js";
import { html } from "../lib/html.js";
import { range, tidy } from "../lib/mask.js";
import { update } from "../lib/store.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").HeadFinding} HeadFinding */

const SHADES = 9;

/** @param {{state: State, index: number | null}} props index: the head that was pointed at last; null: none yet */
export function HeadFacts({ state, index }) {
  const heads = state.facts?.model.heads ?? 1;
  if (index === null) return html`<p class="facts soft">Point at a head to see what it is worth.</p>`;
  const [layer, head] = [Math.floor(index / heads), index % heads];
  const weight = drawn(state, activeColumn(state)).weights[index];
  const study = drawnStudy(state);
  const finding = study?.heads[index];
  const look = () => update({ view: "attention", attention: { ...state.attention, layer, head } });
  return html`
    <div class="facts">
      <p><b>Layer ${layer} · head ${head}</b> <span class="soft">${stateOf(weight, offBy(state, index))}</span></p>
      ${finding ? html`<${Finding} finding=${finding} study=${study} />` : null}
      <button class="quiet" onClick=${look}>See its attention</button>
    </div>`;
}

/** @param {{finding: HeadFinding, study: import("../lib/types.js").Study}} props */
function Finding({ finding, study }) {
  const { p_adjusted: p } = finding;
  const roles = Object.entries(finding.roles);
  return html`
    ${roles.map(([role, share]) => html`<p><b class="letter">${roleLetter(role)}</b> ${roleName(role)}: ${percent(share)} of its attention
      beyond chance</p>`)}
    <p class="soft">With this head alone off:</p>
    <dl class="effects">
      ${metricsOf(study).map(({ metric, name }) => {
        const [low, high] = finding.interval[metric];
        const interval = isKnown(low) && isKnown(high) ? `${signed(low, 3)} to ${signed(high, 3)}` : "no interval";
        return html`<div><dt><${Term} word=${metric} name=${name} /></dt><dd>${signed(finding.delta[metric], 3)} <span class="soft"> ${interval}</span></dd></div>`;
      })}
    </dl>
    <p class="soft">
      ${isKnown(p)
        ? `${p <= 0.05 ? "Shown" : "Not shown"} to be more than chance once all heads are looked at (adjusted p ${p < 0.001 ? "< 0.001" : p.toFixed(3)}).`
        : "The study has too few queries to tell this from chance."}${" "}
      Intervals: 95 %, for one head at a time, from ${count(study.pairs)} pairs of ${study.queries} queries.
    </p>`;
}

/** @param {{state: State}} props */
export function Legend({ state }) {
  const study = drawnStudy(state);
  if (!study) {
    return html`<p class="legend soft">
      The heads are unshaded: there is no study of this model. <code>headroom study</code> makes one.
    </p>`;
  }
  const roles = [...new Set(study.heads.flatMap((one) => Object.keys(one.roles)))];
  const { metric, name } = metricsOf(study)[0];
  return html`
    <div class="legend soft">
      <span><${Term} word=${metric} name=${name} /> lost with the head alone off:</span>
      <span class="scale">0
        <span class="ramp" aria-hidden="true">${range(SHADES).map((shade) => html`<i class=${`shade-${shade}`}></i>`)}</span>
        ${scaleOf(study).toFixed(3)}</span>
      ${roles.map((role) => html`<span><b class="letter">${roleLetter(role)}</b> ${roleName(role)}</span>`)}
    </div>`;
}

/**
 * @param {{index: number, layer: number, head: number, weight: number, by: string | null, finding: HeadFinding | null,
 *   study: import("../lib/types.js").Study | null | undefined, scale: number, selected: boolean, focused: boolean}} props
 *   weight: NaN if it is not known; by: the variant that has the head off
 */
export function Cell({ index, layer, head, weight, by, finding, study, scale, selected, focused }) {
  const classes = [
    "cell",
    shadeOf(finding, study, scale),
    Number.isNaN(weight) ? "unknown" : weight === 0 ? "off" : weight < 1 ? "partly" : "on",
    by ? "by-variant" : "",
    selected ? "selected" : "",
  ];
  return html`
    <div role="gridcell" class=${classes.join(" ")} data-at=${`${layer}.${head}`} data-index=${index}
      tabindex=${focused ? 0 : -1} aria-selected=${selected} aria-label=${described(layer, head, stateOf(weight, by), finding, study)}>
      ${weight > 0 && weight < 1 ? html`<i class="fill" style=${{ height: `${100 * weight}%` }}></i>` : null}
      <span aria-hidden="true">${weight === 0 ? "" : mainLetter(finding?.roles)}</span>
    </div>`;
}

/**
 * @param {HeadFinding | null} finding @param {import("../lib/types.js").Study | null | undefined} study @param {number} scale
 * @returns {string} empty if nothing is known
 */
function shadeOf(finding, study, scale) {
  const change = mainChange(finding, study);
  if (!isKnown(change)) return "";
  const share = Math.max(0, -change) / scale;
  return `shade-${Math.min(SHADES - 1, Math.floor(share * SHADES))}`;
}

/** @param {number} weight @param {string | null} by @returns {string} */
export function stateOf(weight, by) {
  if (by) return `off by ${by}`;
  if (Number.isNaN(weight)) return "not known whether it is on";
  return weight === 0 ? "off" : weight < 1 ? `weight ${tidy(weight)}` : "on";
}

/**
 * @param {number} layer @param {number} head @param {string} state @param {HeadFinding | null} finding
 * @param {import("../lib/types.js").Study | null | undefined} study
 */
function described(layer, head, state, finding, study) {
  const roles = finding ? Object.keys(finding.roles).map(roleName) : [];
  const change = mainChange(finding, study);
  const effect = study && isKnown(change) ? [`alone off it changes ${metricsOf(study)[0].name} by ${signed(change, 3)}`] : [];
  return [`layer ${layer} head ${head}`, state, ...roles, ...effect].join(", ");
}

/** @param {import("../lib/types.js").Study | null | undefined} study @returns {number} a head's largest loss of the first metric */
export function scaleOf(study) {
  return Math.max(0.001, ...(study?.heads ?? []).map((one) => -(mainChange(one, study) ?? 0)));
}
