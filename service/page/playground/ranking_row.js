/** One title of the ranking: its place, its scores under each mask, and in full the probability of each grade. */

import { LETTERS } from "../lib/columns.js";
import { kindOfScore } from "../lib/facts.js";
import { gradeShade, percent, signed } from "../lib/format.js";
import { html } from "../lib/html.js";
import { update } from "../lib/store.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").Answer} Answer */
/** @typedef {import("../lib/types.js").Result} Result */
/** @typedef {import("../lib/types.js").Model} Model */

const HEIGHT = 20;
const STEP = 8;

/**
 * @param {{state: State, answer: Answer, index: number, place: number, shown: number, base: number,
 *   move: number | null, tied: boolean, open: boolean, toggle: () => void}} props
 * tied: it only passed titles that show the same score
 */
export function Row({ state, answer, index, place, shown, base, move, tied, open, toggle }) {
  const { models } = answer;
  const result = answer.columns[shown].results[index];
  const marks = [
    result.truncated ? "cut to the model's window" : "",
    result.unknown_tokens ? `${result.unknown_tokens} of ${result.tokens} tokens unknown` : "",
  ].filter(Boolean);
  const isComparable = (/** @type {number} */ i) =>
    base >= 0 && base !== i && kindOfScore(models[base]) === kindOfScore(models[i])
    && [base, i].every((column) => isScored(answer.columns[column].results[index]));
  return html`
    <tr data-title=${index} class=${open ? "open" : ""}>
      <td class="place"><b>${place + 1}</b><${Move} move=${move} tied=${tied} /></td>
      <td class="title">
        <button class="name" aria-expanded=${open} onClick=${toggle}><bdi>${answer.titles[index] || "(empty)"}</bdi></button>
        ${marks.map((mark) => html`<span class="mark">${mark}</span>`)}
        ${open ? html`<${Details} state=${state} answer=${answer} index=${index} />` : null}
      </td>
      ${answer.columns.map((column, i) => html`
        <${ScoreCell} result=${column.results[index]} isRaw=${isRaw(models[i])} isActive=${i === shown}
          baseline=${isComparable(i) ? answer.columns[base].results[index] : null} />`)}
    </tr>`;
}

/** @param {{move: number | null, tied: boolean}} props */
function Move({ move, tied }) {
  if (move === null) return null;
  if (!move) return html`<span class="move soft"><span aria-hidden="true">–</span><span class="unseen">same place</span></span>`;
  return html`
    <span class=${`move ${tied ? "soft" : move > 0 ? "up" : "down"}`} title=${tied ? "The scores tie: the order among them means nothing" : null}>
      <span aria-hidden="true">${move > 0 ? "▲" : "▼"}</span>
      <span class="unseen">${move > 0 ? "up" : "down"} </span>${Math.abs(move)}${tied ? html`<span class="unseen"> among ties</span>` : null}
    </span>`;
}

/** @param {{state: State, answer: Answer, index: number}} props */
function Details({ state, answer, index }) {
  const { models } = answer;
  const tokens = Math.max(...answer.columns.map(({ results }) => results[index].tokens));
  const title = indexNow(state.titles, answer.titles[index], index); // the answer may be of earlier titles
  const look = () => update({ view: "attention", attention: { ...state.attention, title } });
  const graded = byKind(models).filter((columns) => models[columns[0]].grades);
  return html`
    <div class="details">
      ${graded.map((columns) => html`<table>
        <thead><tr><th scope="col">mask</th>${models[columns[0]].grades?.map((grade) => html`<th scope="col">${grade}</th>`)}</tr></thead>
        <tbody>${columns.map((i) => html`
          <tr><th scope="row">${letterOf(state, answer.ids[i])}</th>
            ${(answer.columns[i].results[index].probabilities ?? []).map((share) => html`<td>${percent(share, 1)}</td>`)}
          </tr>`)}</tbody>
      </table>`)}
      <p><span class="soft">${tokens} tokens</span> <button disabled=${title < 0} onClick=${look}>See the attention</button></p>
    </div>`;
}

/** @param {{result: Result, baseline: Result | null, isActive: boolean, isRaw: boolean}} props isRaw: not from 0 to 1 */
function ScoreCell({ result, baseline, isActive, isRaw }) {
  if (!isScored(result)) {
    return html`<td class=${`score${isActive ? " active" : ""}`}><div><span class="number soft" title="The titles' own order: no scores">–</span></div></td>`;
  }
  const change = baseline ? result.score - baseline.score : null;
  const direction = change === null || Math.abs(change) < 0.0005 ? "" : change > 0 ? "up" : "down";
  return html`
    <td class=${`score${isActive ? " active" : ""}`}>
      <div>
        <b class="number">${result.score.toFixed(3)}</b>
        ${result.probabilities
          ? html`<${Bars} probabilities=${result.probabilities} grade=${result.grade ?? 0} label=${result.label ?? ""} />`
          : isRaw ? null : html`<${OneBar} score=${result.score} />`}
        <span class=${`change ${direction}`}>${change === null ? "" : signed(change, 3)}</span>
      </div>
    </td>`;
}

/** @param {{probabilities: number[], grade: number, label: string}} props */
function Bars({ probabilities, grade, label }) {
  const text = `${label}, ${percent(probabilities[grade])}`;
  return html`
    <svg class="bars" role="img" aria-label=${text} viewBox=${`0 0 ${STEP * probabilities.length - 2} ${HEIGHT}`}
      width=${STEP * probabilities.length - 2} height=${HEIGHT}>
      <title>${text}</title>
      ${probabilities.map((probability, index) => {
        const height = Math.max(1, probability * HEIGHT);
        return html`<rect class=${`grade-${gradeShade(index, probabilities.length)}`} x=${STEP * index} width=${STEP - 2}
          y=${HEIGHT - height} height=${height} />`;
      })}
    </svg>`;
}

/** @param {{score: number}} props */
function OneBar({ score }) {
  return html`
    <svg class="bars" aria-hidden="true" viewBox="0 0 38 20" width="38" height="20">
      <rect class="grade-0" x="0" y="7" width="38" height="6" rx="1" />
      <rect class="grade-4" x="0" y="7" width=${38 * Math.min(1, Math.max(0, score))} height="6" rx="1" />
    </svg>`;
}

/**
 * @param {string[]} titles @param {string} title @param {number} index that it had
 * @returns {number} the index that the title has among these; -1: it is not there
 */
export function indexNow(titles, title, index) {
  return titles[index] === title ? index : titles.indexOf(title);
}

/** @param {Result} result @returns {boolean} whether a network scored it; false of the titles' own order */
function isScored({ scored = true }) {
  return scored;
}

/** @param {Model} model @returns {boolean} whether its scores are raw logits: any number, so there is no bar to fill */
export function isRaw({ grades, score_activation }) {
  return !grades && score_activation === "identity";
}

/** @param {Model[]} models of the columns @returns {number[][]} the columns' indices by kind of score */
export function byKind(models) {
  const kinds = models.map(kindOfScore);
  return [...new Set(kinds)].map((kind) => kinds.flatMap((one, i) => (one === kind ? [i] : [])));
}

/** @param {State} state @param {number} id of a column @returns {string} empty if it is gone */
export function letterOf({ columns }, id) {
  return LETTERS[columns.findIndex((one) => one.id === id)] ?? "";
}
