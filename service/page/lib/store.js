/** The page's one state. Whoever changes it calls `update`; whoever shows it calls `useStore`. */

import { useEffect, useState } from "../vendor/hooks.js";

/** @typedef {import("./types.js").State} State */

/** @type {State} */
let state = {
  view: "playground",
  theme: "system",
  step: 0,
  key: { asking: false, wrong: false, admin: false, needed: false },
  facts: null,
  factsProblem: null,
  query: "",
  titles: [],
  columns: [],
  active: 0,
  baseline: null,
  selection: [],
  seed: 7,
  answer: null,
  busy: false,
  problem: null,
  attention: { title: 0, layer: 0, head: 0, special: true, words: false, masked: false },
  experiment: null,
  start: null,
};

/** @type {Set<(state: State, before: State) => void>} */
const listeners = new Set();

/** @returns {State} */
export function current() {
  return state;
}

/** @param {Partial<State>} change */
export function update(change) {
  const before = state;
  state = { ...state, ...change };
  for (const listener of [...listeners]) listener(state, before);
}

/**
 * @param {(state: State, before: State) => void} listener
 * @returns {() => void} ends it
 */
export function subscribe(listener) {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** @returns {State} The state; the component is drawn again when it changes. */
export function useStore() {
  const [shown, show] = useState(state);
  useEffect(() => {
    show(state);
    return subscribe((next) => show(next));
  }, []);
  return shown;
}
