/** The titles in the order that the active mask gives them, each with its scores and its way from the baseline. */

import { useState } from "../vendor/hooks.js";
import { labelOf, LETTERS, refusedColumn } from "../lib/columns.js";
import { gradeShade } from "../lib/format.js";
import { html } from "../lib/html.js";
import { askAgain } from "../lib/scoring.js";
import { update } from "../lib/store.js";
import { Trouble } from "../lib/trouble.js";
import { ScoreCell } from "./score_cell.js";
import { Details } from "./title_details.js";
import { useGliding } from "./gliding.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").Answer} Answer */

const FIELDS = /^(query|titles|masks\[|variants\[)/;

/** @param {{state: State}} props */
export function Ranking({ state }) {
  const { answer, problem } = state;
  const [open, setOpen] = useState(-1);
  const active = answer ? answer.ids.indexOf(state.columns[state.active].id) : -1;
  const shown = active < 0 ? 0 : active;
  const order = answer ? ranked(answer, shown) : [];
  const body = useGliding(order);
  const banner = problem && problem.status !== 401 && !FIELDS.test(problem.param ?? "");
  if (!answer) return html`${banner ? html`<${Trouble} problem=${problem} again=${askAgain} alone=${false} />` : null}
    <${Empty} state=${state} />`;
  const base = state.baseline === null ? -1 : answer.ids.indexOf(state.columns[state.baseline]?.id);
  const before = base < 0 ? null : places(ranked(answer, base));
  return html`
    ${banner ? html`<${Trouble} problem=${problem} again=${askAgain} alone=${false} />` : null}
    <table class=${`ranking columns-${answer.ids.length}`} data-stale=${problem ? "" : null}>
      <caption class="unseen">Titles by score under mask ${LETTERS[state.active]}</caption>
      <thead><tr>
        <th scope="col" class="place">#</th>
        <th scope="col" class="title">Title</th>
        ${answer.ids.map((id, i) => html`
          <${ColumnHead} state=${state} id=${id} isActive=${i === shown} isBase=${i === base} degraded=${answer.columns[i].degraded} />`)}
      </tr></thead>
      <tbody ref=${body}>
        ${order.map((index, place) => html`
          <${Row} key=${index} state=${state} answer=${answer} index=${index} place=${place} shown=${shown}
            base=${base} move=${before && base !== shown ? (before.get(index) ?? place) - place : null}
            open=${open === index} toggle=${() => setOpen(open === index ? -1 : index)} />`)}
      </tbody>
    </table>
    <${Grades} state=${state} />`;
}

/** @param {{state: State, id: number, isActive: boolean, isBase: boolean, degraded: boolean}} props */
function ColumnHead({ state, id, isActive, isBase, degraded }) {
  const index = state.columns.findIndex((one) => one.id === id);
  const one = state.columns[index];
  if (!one) return html`<th scope="col" class="score"></th>`;
  return html`
    <th scope="col" class=${`score${isActive ? " active" : ""}`} aria-sort=${isActive ? "descending" : null}>
      <button class="quiet" title="Rank by this mask" onClick=${() => update({ active: index, selection: [] })}>
        <b class="letter">${LETTERS[index]}</b> <span class="label">${labelOf(state, one)}</span>
        ${isBase ? html`<span class="soft"> base</span>` : null}
      </button>
      ${degraded ? html`<span class="mark" title="The cascade was short of time and left out its later stages">degraded</span>` : null}
    </th>`;
}

/**
 * @param {{state: State, answer: Answer, index: number, place: number, shown: number, base: number,
 *   move: number | null, open: boolean, toggle: () => void}} props
 */
function Row({ state, answer, index, place, shown, base, move, open, toggle }) {
  const result = answer.columns[shown].results[index];
  const marks = [
    result.truncated ? "cut to the model's window" : "",
    result.unknown_tokens ? `${result.unknown_tokens} of ${result.tokens} tokens unknown` : "",
  ].filter(Boolean);
  return html`
    <tr data-title=${index} class=${open ? "open" : ""}>
      <td class="place"><b>${place + 1}</b><${Move} move=${move} /></td>
      <td class="title">
        <button class="name" aria-expanded=${open} onClick=${toggle}><bdi>${answer.titles[index] || "(empty)"}</bdi></button>
        ${marks.map((mark) => html`<span class="mark">${mark}</span>`)}
        ${open ? html`<${Details} state=${state} answer=${answer} index=${index} />` : null}
      </td>
      ${answer.columns.map((column, i) => html`
        <${ScoreCell} result=${column.results[index]} isRaw=${isRaw(state)} isActive=${i === shown}
          baseline=${base >= 0 && base !== i ? answer.columns[base].results[index] : null} />`)}
    </tr>`;
}

/** @param {{move: number | null}} props */
function Move({ move }) {
  if (move === null) return null;
  if (!move) return html`<span class="move soft"><span aria-hidden="true">–</span><span class="unseen">same place</span></span>`;
  return html`
    <span class=${`move ${move > 0 ? "up" : "down"}`}>
      <span aria-hidden="true">${move > 0 ? "▲" : "▼"}</span>
      <span class="unseen">${move > 0 ? "up" : "down"} </span>${Math.abs(move)}
    </span>`;
}

/** @param {{state: State}} props */
function Empty({ state }) {
  if (!state.query.trim()) return html`<p class="empty">Type a query, or choose an example.</p>`;
  if (!state.titles.length) return html`<p class="empty">Paste some titles, or choose an example.</p>`;
  const refused = refusedColumn(state);
  const reason = refused < 0 ? "" : ` Mask ${LETTERS[refused]}: ${state.problem?.message}`;
  return html`<p class="empty" role="status">${state.busy ? "Scoring…" : `Nothing to show.${reason}`}</p>`;
}

/** @param {{state: State}} props */
function Grades({ state }) {
  const grades = state.facts?.model.grades;
  const range = isRaw(state) ? "raw score, any number," : "score from 0 to 1";
  if (!grades) return html`<p class="grades soft">This model gives one ${range} and no grades.</p>`;
  return html`
    <p class="grades soft">
      Bars, from left: ${grades.map((grade, i) => html`<span><i class=${`grade-${gradeShade(i, grades.length)}`}></i>${grade}</span>`)}
      <span>Number: the score, from 0 to 1. Δ: against the baseline.</span>
    </p>`;
}

/** @param {State} state @returns {boolean} whether scores are raw logits: any number, so there is no bar to fill */
function isRaw({ facts }) {
  return facts?.model.score_activation === "identity";
}

/** @param {Answer} answer @param {number} column @returns {number[]} the titles' indices, best first */
function ranked(answer, column) {
  const { results } = answer.columns[column];
  return results.map((_, i) => i).sort((a, b) => results[b].raw_score - results[a].raw_score || a - b);
}

/** @param {number[]} order @returns {Map<number, number>} each title's place */
function places(order) {
  return new Map(order.map((index, place) => [index, place]));
}
