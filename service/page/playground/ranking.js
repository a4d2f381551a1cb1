/** The titles in the order that the active mask gives them, each with its scores and its way from the baseline. */

import { useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { labelOf, LETTERS, refusedColumn } from "../lib/columns.js";
import { gradeShade } from "../lib/format.js";
import { html } from "../lib/html.js";
import { scoreAgain } from "../lib/scoring.js";
import { update } from "../lib/store.js";
import { prefersStillness } from "../lib/theme.js";
import { Trouble } from "../lib/trouble.js";
import { byKind, indexNow, isRaw, letterOf, Row } from "./ranking_row.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").Answer} Answer */

const MILLISECONDS = 320;
const MAX_ROWS = 60;
const FIELDS = /^(query|titles)/;

/** @param {{state: State}} props */
export function Ranking({ state }) {
  const { answer, problem } = state;
  const [opened, setOpened] = useState(/** @type {{index: number, title: string} | null} */ (null));
  const active = answer ? answer.ids.indexOf(state.columns[state.active].id) : -1;
  const shown = active < 0 ? Math.max(0, answer?.ids.findIndex((id) => letterOf(state, id)) ?? 0) : active;
  const order = answer ? ranked(answer, shown) : [];
  const open = answer && opened ? indexNow(answer.titles, opened.title, opened.index) : -1;
  const toggle = (/** @type {number} */ index) => setOpened(open === index ? null : { index, title: answer?.titles[index] ?? "" });
  const body = useGliding(order);
  if (!answer) return html`${refusedColumn(state) < 0 ? html`<${Banner} state=${state} />` : null}<${Empty} state=${state} />`;
  const base = state.baseline === null ? -1 : answer.ids.indexOf(state.columns[state.baseline]?.id);
  const before = base < 0 ? null : places(ranked(answer, base));
  return html`
    <${Banner} state=${state} />
    <div class="pane">
    <table class=${`ranking columns-${answer.ids.length}`} data-stale=${problem ? "" : null}>
      <caption class="unseen">Titles by score under mask ${letterOf(state, answer.ids[shown])}</caption>
      <thead><tr>
        <th scope="col" class="place">#</th>
        <th scope="col" class="title">Title</th>
        ${answer.ids.map((id, i) => html`
          <${ColumnHead} state=${state} id=${id} isActive=${i === shown} degraded=${answer.columns[i].degraded} />`)}
      </tr></thead>
      <tbody ref=${body}>
        ${order.map((index, place) => html`
          <${Row} key=${index} state=${state} answer=${answer} index=${index} place=${place} shown=${shown}
            base=${base} move=${before && base !== shown ? (before.get(index) ?? place) - place : null}
            tied=${before !== null && onlyPassedTies(answer, index, shown, base)}
            open=${open === index} toggle=${() => toggle(index)} />`)}
      </tbody>
    </table>
    </div>
    <${Kinds} models=${answer.models} letters=${answer.ids.map((id) => letterOf(state, id))} />`;
}

/** @param {{state: State}} props what is wrong, unless it stands at its field */
function Banner({ state }) {
  const { problem } = state;
  const refused = refusedColumn(state);
  if (!problem || problem.status === 401 || FIELDS.test(problem.param ?? "") || refused === state.active) return null;
  const named = refused < 0 ? problem : { ...problem, message: `Mask ${LETTERS[refused]}: ${problem.message}` };
  return html`<${Trouble} problem=${named} retry=${scoreAgain} automatic=${false} />`;
}

/** @param {{state: State, id: number, isActive: boolean, degraded: boolean}} props */
function ColumnHead({ state, id, isActive, degraded }) {
  const index = state.columns.findIndex((one) => one.id === id);
  const one = state.columns[index];
  if (!one) return html`<th scope="col" class="score"></th>`;
  return html`
    <th scope="col" class=${`score${isActive ? " active" : ""}`} aria-sort=${isActive ? "descending" : null}>
      <button class="quiet" title="Rank by this mask" onClick=${() => update({ active: index, selection: [] })}>
        <b class="letter">${LETTERS[index]}</b> <span class="label">${labelOf(state, one)}</span>
      </button>
      ${degraded ? html`<span class="mark" title="The cascade was short of time and left out its later stages">degraded</span>` : null}
    </th>`;
}

/** @param {{state: State}} props */
function Empty({ state }) {
  if (!state.query.trim()) return html`<p class="empty">Type a query, or choose an example.</p>`;
  if (!state.titles.length) return html`<p class="empty">Paste some titles, or choose an example.</p>`;
  const refused = refusedColumn(state);
  const reason = refused < 0 ? "" : ` Mask ${LETTERS[refused]}: ${state.problem?.message}`;
  return html`<p class="empty" role="status">${state.busy ? "Scoring…" : `Nothing to show.${reason}`}</p>`;
}

/** @param {{models: import("../lib/types.js").Model[], letters: string[]}} props of the answer's columns */
function Kinds({ models, letters }) {
  const kinds = byKind(models);
  if (kinds.length === 1) return html`<${Grades} model=${models[0]} about=${null} />`;
  return html`
    ${kinds.map((columns) => html`
      <${Grades} model=${models[columns[0]]} about=${html`<b>${columns.map((i) => letters[i]).join(", ")}:</b> `} />`)}
    <p class="grades soft">No change is shown between different kinds of score.</p>`;
}

/** @param {{model: import("../lib/types.js").Model, about: unknown}} props about: which masks have this kind of score; null: all */
function Grades({ model, about }) {
  const { grades, label_order_note: note } = model;
  const range = isRaw(model) ? "raw score, any number," : "score from 0 to 1";
  if (!grades) return html`<p class="grades soft">${about ?? "This model gives "}one ${range} and no grades.</p>`;
  return html`
    <p class="grades soft">
      ${about}Bars, from left: ${grades.map((grade, i) => html`<span><i class=${`grade-${gradeShade(i, grades.length)}`}></i>${grade}</span>`)}
    </p>
    <p class="grades soft">Number: the score, from 0 to 1. In small type: the change from the base.</p>
    ${note ? html`<p class="grades soft">Of ${model.name}, ${note}.</p>` : null}`;
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

/**
 * @param {Answer} answer @param {number} index of a title @param {number} now a column @param {number} before another
 * @returns {boolean} whether it changed places only with titles that show the same score as it does in one of both
 */
function onlyPassedTies(answer, index, now, before) {
  const [a, b] = [answer.columns[now].results, answer.columns[before].results];
  const isAbove = (/** @type {typeof a} */ of, /** @type {number} */ i) =>
    of[i].raw_score > of[index].raw_score || (of[i].raw_score === of[index].raw_score && i < index);
  const ties = (/** @type {typeof a} */ of, /** @type {number} */ i) => of[i].score.toFixed(3) === of[index].score.toFixed(3);
  return a.every((_, i) => i === index || isAbove(a, i) === isAbove(b, i) || ties(a, i) || ties(b, i));
}

/**
 * Rows glide to their new places, unless the person prefers less motion.
 * @param {number[]} order the rows' keys from top to bottom
 * @returns {{current: HTMLElement | null}} for the element around the rows, which carry `data-title`
 */
function useGliding(order) {
  const body = useRef(/** @type {HTMLElement | null} */ (null));
  const places = useRef(/** @type {Map<string, number>} */ (new Map()));
  useLayoutEffect(() => {
    const rows = /** @type {HTMLElement[]} */ ([...(body.current?.children ?? [])]);
    const before = places.current;
    places.current = new Map(rows.map((row) => [String(row.dataset.title), row.offsetTop]));
    if (prefersStillness() || rows.length > MAX_ROWS) return;
    for (const row of rows) {
      const distance = (before.get(String(row.dataset.title)) ?? row.offsetTop) - row.offsetTop;
      if (distance) {
        row.animate([{ transform: `translateY(${distance}px)` }, { transform: "none" }], {
          duration: MILLISECONDS,
          easing: "cubic-bezier(0.2, 0.7, 0.2, 1)",
        });
      }
    }
  }, [order.join()]);
  return body;
}
