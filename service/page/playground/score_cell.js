/** One title's score under one mask: the number, a bar for each grade, and the change from the baseline. */

import { html } from "../lib/html.js";
import { gradeShade, percent, signed } from "../lib/format.js";

/** @typedef {import("../lib/types.js").Result} Result */

const HEIGHT = 20;
const STEP = 8;

/** @param {{result: Result, baseline: Result | null, isActive: boolean, isRaw: boolean}} props isRaw: not from 0 to 1 */
export function ScoreCell({ result, baseline, isActive, isRaw }) {
  const change = baseline ? result.score - baseline.score : null;
  const direction = change === null || Math.abs(change) < 0.0005 ? "" : change > 0 ? "up" : "down";
  return html`
    <td class=${`score${isActive ? " active" : ""}`}>
      <div>
        <b class="number">${result.score.toFixed(3)}</b>
        ${result.probabilities
          ? html`<${Bars} probabilities=${result.probabilities} label=${result.label ?? ""} />`
          : isRaw ? null : html`<${OneBar} score=${result.score} />`}
        <span class=${`change ${direction}`}>${change === null ? "" : signed(change, 3)}</span>
      </div>
    </td>`;
}

/** @param {{probabilities: number[], label: string}} props */
function Bars({ probabilities, label }) {
  const best = Math.max(...probabilities);
  const text = `${label}, ${percent(best)}`;
  return html`
    <svg class="bars" role="img" aria-label=${text} viewBox=${`0 0 ${STEP * probabilities.length - 2} ${HEIGHT}`}
      width=${STEP * probabilities.length - 2} height=${HEIGHT}>
      <title>${text}</title>
      ${probabilities.map((probability, grade) => {
        const height = Math.max(1, probability * HEIGHT);
        return html`<rect class=${`grade-${gradeShade(grade, probabilities.length)}`} x=${STEP * grade} width=${STEP - 2}
          y=${HEIGHT - height} height=${height} />`;
      })}
    </svg>`;
}

/** @param {{score: number}} props */
function OneBar({ score }) {
  return html`
    <svg class="bars" aria-hidden="true" viewBox="0 0 38 20" width="38" height="20">
      <rect class="grade-0" x="0" y="7" width="38" height="6" rx="1" />
      <rect class="grade-4" x="0" y="7" width=${38 * score} height="6" rx="1" />
    </svg>`;
}
