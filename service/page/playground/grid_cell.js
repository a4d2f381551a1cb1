/** One head in the grid. Its shade says what it is worth, its shape whether it is on. */

import { html } from "../lib/html.js";
import { isKnown, mainLetter, roleName, signed } from "../lib/format.js";
import { tidy } from "../lib/mask.js";

/** @typedef {import("../lib/types.js").HeadFinding} HeadFinding */

const SHADES = 9;

/**
 * @param {{index: number, layer: number, head: number, weight: number, by: string | null, finding: HeadFinding | null,
 *   scale: number, selected: boolean, focused: boolean}} props weight: NaN if it is not known; by: the variant that has
 *   the head off
 */
export function Cell({ index, layer, head, weight, by, finding, scale, selected, focused }) {
  const classes = [
    "cell",
    shadeOf(finding, scale),
    Number.isNaN(weight) ? "unknown" : weight === 0 ? "off" : weight < 1 ? "partly" : "on",
    by ? "by-variant" : "",
    selected ? "selected" : "",
  ];
  return html`
    <div role="gridcell" class=${classes.join(" ")} data-at=${`${layer}.${head}`} data-index=${index}
      tabindex=${focused ? 0 : -1} aria-selected=${selected} aria-label=${described(layer, head, stateOf(weight, by), finding)}>
      ${weight > 0 && weight < 1 ? html`<i class="fill" style=${{ height: `${100 * weight}%` }}></i>` : null}
      <span aria-hidden="true">${weight === 0 ? "" : mainLetter(finding?.roles)}</span>
    </div>`;
}

/** @param {HeadFinding | null} finding @param {number} scale @returns {string} empty if nothing is known */
function shadeOf(finding, scale) {
  const change = finding?.delta.qwk;
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

/** @param {number} layer @param {number} head @param {string} state @param {HeadFinding | null} finding */
function described(layer, head, state, finding) {
  const roles = finding ? Object.keys(finding.roles).map(roleName) : [];
  const effect = isKnown(finding?.delta.qwk) ? [`alone off it changes QWK by ${signed(finding?.delta.qwk, 3)}`] : [];
  return [`layer ${layer} head ${head}`, state, ...roles, ...effect].join(", ");
}

/** @param {import("../lib/types.js").Study | null | undefined} study @returns {number} a head's largest loss of QWK */
export function scaleOf(study) {
  return Math.max(0.001, ...(study?.heads ?? []).map((one) => -(one.delta.qwk ?? 0)));
}
