/** What can be done to the compared masks. Each function returns the change of the state. */

import { allOn, canonical, requestForm, sameMask } from "./mask.js";

/** @typedef {import("./types.js").State} State */
/** @typedef {import("./types.js").Column} Column */
/** @typedef {import("./mask.js").Weights} Weights */

export const MAX_COLUMNS = 4;
export const LETTERS = "ABCD";

let lastId = 0;

/** @param {Weights | null} weights @param {string | null} [name] @param {string | null} [variant] @returns {Column} */
export function column(weights, name = null, variant = null) {
  lastId += 1;
  return { id: lastId, weights, name, variant };
}

/** @param {State} state @returns {Column} */
export function activeColumn(state) {
  return state.columns[state.active];
}

/**
 * Change the active mask.
 * @param {State} state @param {Weights | null} weights
 * @param {{name?: string | null, variant?: string | null}} [options]
 * @returns {Partial<State>}
 */
export function edited(state, weights, { name = null, variant = null } = {}) {
  const before = activeColumn(state);
  if (weights && before.weights && sameMask(weights, before.weights)) return {};
  const changed = { ...before, weights, name, variant };
  return { columns: state.columns.map((one, i) => (i === state.active ? changed : one)) };
}

/** @param {State} state @returns {Partial<State>} with a copy of the active mask beside it, to go on from */
export function added(state) {
  const { weights, name, variant } = activeColumn(state);
  const columns = [...state.columns, column(weights, name, variant)];
  return { columns, active: columns.length - 1, baseline: state.baseline ?? state.active };
}

/** @param {State} state @param {number} index @returns {Partial<State>} */
export function removed(state, index) {
  const columns = state.columns.filter((_, i) => i !== index);
  const shifted = (/** @type {number} */ at) => Math.min(at > index ? at - 1 : at, columns.length - 1);
  const baseline = state.baseline === null || state.baseline === index ? null : shifted(state.baseline);
  return { columns, active: shifted(state.active), baseline };
}

/** @param {State} state @param {number} index @returns {Partial<State>} the baseline, pinned or let go */
export function pinned(state, index) {
  return { baseline: state.baseline === index ? null : index };
}

/**
 * @param {State} state
 * @returns {{body: object, order: number[]}} the body of a comparison, and for each column of its answer the
 *   index of ours: the service answers masks first
 */
export function comparison(state) {
  const shape = /** @type {import("./mask.js").Shape} */ (state.facts?.model);
  const indices = state.columns.map((_, i) => i);
  const masks = indices.filter((i) => state.columns[i].weights);
  const variants = indices.filter((i) => !state.columns[i].weights);
  const body = {
    query: state.query,
    titles: state.titles,
    masks: masks.map((i) => requestForm(state.columns[i].weights ?? allOn(shape), shape)),
    variants: variants.map((i) => state.columns[i].variant),
  };
  return { body, order: [...masks, ...variants] };
}

/** @param {State} state @param {Column} one @returns {string} what a column is called on the page */
export function labelOf(state, one) {
  if (one.variant && !one.weights) return one.variant;
  if (one.name) return one.name;
  const shape = state.facts?.model;
  if (!shape || !one.weights) return "";
  const spec = canonical(one.weights, shape);
  return spec === "none" ? "all heads" : spec.startsWith("weights:") ? "weighted" : spec;
}
