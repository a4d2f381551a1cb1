/** What can be done to the compared masks. Each function returns the change of the state. */

import { defaultVariant, drawnOf, isBare, isOwn, maskOf, storedMasks, studyOf } from "./facts.js";
import { allOn, canonical, requestForm, sameMask } from "./mask.js";

/** @typedef {import("./types.js").State} State */
/** @typedef {import("./types.js").Column} Column */
/** @typedef {import("./mask.js").Mask} Mask */

export const MAX_COLUMNS = 4;
export const LETTERS = "ABCD";

let lastId = 0;

/** @param {Mask | null} mask @param {string | null} [name] @param {string | null} [variant] @returns {Column} */
export function column(mask, name = null, variant = null) {
  lastId += 1;
  return { id: lastId, mask, name, variant, unreadable: null };
}

/** @param {State} state @returns {Column} */
export function activeColumn(state) {
  return state.columns[state.active];
}

/**
 * Change the active mask.
 * @param {State} state @param {Mask | null} mask
 * @param {{name?: string | null, variant?: string | null}} [options]
 * @returns {Partial<State>}
 */
export function edited(state, mask, { name = null, variant = null } = {}) {
  const before = activeColumn(state);
  if (mask && before.mask && sameMask(mask, before.mask) && !before.unreadable) return {};
  const changed = { ...before, mask, name, variant, unreadable: null };
  return { columns: state.columns.map((one, i) => (i === state.active ? changed : one)) };
}

/**
 * @param {State} state
 * @returns {Partial<State>} without the names of masks that the live config does not give them any more
 */
export function renamed({ facts, columns }) {
  if (!facts) return {};
  const stored = storedMasks(facts);
  const isNamed = (/** @type {Column} */ { name, mask }) => {
    const variant = isBare(facts) ? facts.variants.find((one) => one.name === name && isOwn(one)) : undefined;
    const masks = [stored.get(name ?? ""), variant && maskOf(variant.head_mask.spec, facts.model)];
    return masks.some((one) => one && mask && sameMask(one, mask));
  };
  return { columns: columns.map((one) => (isNamed(one) ? one : { ...one, name: null })) };
}

/** @param {State} state @returns {Partial<State>} with a copy of the active mask beside it, to go on from */
export function added(state) {
  const { mask, name, variant } = activeColumn(state);
  const columns = [...state.columns, column(mask, name, variant)];
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
  const masks = indices.filter((i) => state.columns[i].mask);
  const variants = indices.filter((i) => !state.columns[i].mask);
  const body = {
    query: state.query,
    titles: state.titles,
    masks: state.columns.flatMap(({ mask }) => (mask ? [requestForm(mask, shape)] : [])),
    variants: variants.map((i) => state.columns[i].variant),
  };
  return { body, order: [...masks, ...variants] };
}

/**
 * @param {State} state
 * @returns {number} the index of the column that the service refuses, -1 if it refuses something else or nothing
 */
export function refusedColumn(state) {
  const [, list, place] = /^(masks|variants)\[(\d+)\]/.exec(state.problem?.param ?? "") ?? [];
  const listed = state.columns.flatMap(({ mask }, i) => (Boolean(mask) === (list === "masks") ? [i] : []));
  return list ? (listed[Number(place)] ?? -1) : -1;
}

/**
 * @param {import("./types.js").Facts} facts @param {Column} one
 * @returns {import("./types.js").Variant | undefined} the variant that a column is, or that its mask is laid on
 */
export function variantOf(facts, one) {
  return one.mask ? defaultVariant(facts) : facts.variants.find(({ name }) => name === one.variant);
}

/**
 * @param {State} state @param {Column} one
 * @returns {string} what a column is called on the page: its mask, with the variant that it is laid on, if that has a mask
 */
export function labelOf({ facts }, one) {
  if (one.variant && !one.mask) return one.variant;
  if (!facts || !one.mask) return one.name ?? "";
  const spec = canonical(one.mask, facts.model);
  const mask = spec.startsWith("weights:") ? "weighted" : spec;
  if (isBare(facts)) return one.name ?? (mask === "none" ? "all heads" : mask);
  return `${defaultVariant(facts)?.name} ${one.name ? `@${one.name}` : mask}`;
}

/**
 * @param {State} state @param {Column} one
 * @returns {Mask} what the grid draws: off is what the variant has off, too; NaN is the weight of a head of which the page
 *   does not know whether it is on
 */
export function drawn({ facts }, one) {
  const all = /** @type {import("./types.js").Facts} */ (facts);
  const { model } = all;
  const unknown = { weights: new Float32Array(model.layers * model.heads).fill(NaN), skipped: [] };
  const under = (one.mask && isBare(all) ? allOn(model) : drawnOf(all, variantOf(all, one))) ?? unknown;
  const own = one.mask ?? allOn(model);
  const weights = own.weights.map((weight, i) => (weight === 0 ? 0 : weight * under.weights[i]));
  return { weights, skipped: [...new Set([...own.skipped, ...under.skipped])].sort((a, b) => a - b) };
}

/** @param {State} state @returns {import("./types.js").Study | null} the study of the heads that the grid shows */
export function drawnStudy(state) {
  return state.facts && studyOf(state.facts, variantOf(state.facts, activeColumn(state)));
}

/**
 * @param {State} state @param {number} index
 * @returns {string | null} the name of the variant that has a head off, whatever the active mask says
 */
export function offBy({ facts, columns, active }, index) {
  const variant = columns[active].mask && facts ? defaultVariant(facts) : undefined;
  return variant && facts && drawnOf(facts, variant)?.weights[index] === 0 ? variant.name : null;
}
