/** Keeps the shown scores those of the shown state: one request at a time, and the latest wins. */

import { asProblem, call } from "./api.js";
import { comparison } from "./columns.js";
import { scoringModel } from "./facts.js";
import { beginning } from "./format.js";
import { current, subscribe, update } from "./store.js";

/** @typedef {import("./types.js").State} State */

const TYPING_MS = 200;
const BURST_MS = 60;

/** @type {AbortController | null} */
let flight = null;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let waiting;
let changedAt = -Infinity;
let isStale = false;

/** Begins to follow the state. */
export function followState() {
  subscribe((state, before) => {
    if (!state.facts) return;
    const typed = state.query !== before.query || state.titles !== before.titles;
    if (typed || state.columns !== before.columns || state.facts !== before.facts) isStale = true;
    if (isStale && state.view === "playground") { // no other view shows scores
      isStale = false;
      const isBurst = performance.now() - changedAt < 2 * BURST_MS;
      changedAt = performance.now();
      schedule(typed && before.facts ? TYPING_MS : isBurst ? BURST_MS : 0);
    }
  });
}

/** Asks again, now. */
export function scoreAgain() {
  schedule(0);
}

/** @param {number} milliseconds */
function schedule(milliseconds) {
  flight?.abort();
  clearTimeout(waiting);
  waiting = setTimeout(ask, milliseconds);
  if (!current().busy) update({ busy: true });
}

async function ask() {
  const state = current();
  clearTimeout(waiting);
  if (!state.query.trim() || !state.titles.length) {
    update({ answer: null, busy: false, problem: null });
    return;
  }
  const controller = new AbortController();
  flight = controller;
  try {
    const { body, order } = comparison(state);
    const reply = await call("v1/compare", { body, signal: controller.signal });
    if (flight !== controller) return;
    update({ answer: answerOf(state, order, reply.columns), busy: false, problem: null });
  } catch (error) {
    if (controller.signal.aborted) return;
    const problem = asProblem(error);
    update({ busy: false, problem: fieldOf(problem, state) });
    if (problem.retryAt) waiting = setTimeout(scoreAgain, problem.retryAt - Date.now());
  } finally {
    if (flight === controller) flight = null;
  }
}

/**
 * @param {State} state @param {number[]} order @param {import("./types.js").AnswerColumn[]} columns
 * @returns {import("./types.js").Answer}
 */
function answerOf(state, order, columns) {
  const facts = /** @type {import("./types.js").Facts} */ (state.facts);
  const ours = state.columns.map((_, i) => columns[order.indexOf(i)]);
  return {
    titles: state.titles,
    ids: state.columns.map((one) => one.id),
    columns: ours,
    models: ours.map((one) => scoringModel(facts, one)),
  };
}

/**
 * @param {import("./types.js").Problem} problem @param {State} state
 * @returns {import("./types.js").Problem} with the field named as the page numbers it: titles[3] is line 4
 */
function fieldOf(problem, state) {
  const line = /^titles\[(\d+)\]/.exec(problem.param ?? "");
  if (!line) return { ...problem, message: problem.message.replace(/^(masks|variants)\[\d+\]: /, "") };
  const shown = beginning(state.titles[Number(line[1])] ?? "", 40);
  return { ...problem, param: "titles", message: `Line ${Number(line[1]) + 1} (“${shown}”): ${problem.message}` };
}
