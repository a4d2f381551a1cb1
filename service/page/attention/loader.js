/** Fetches attention in pieces small enough that neither the service nor the page stalls: the shown head first. */

import { useEffect, useMemo, useState } from "../vendor/hooks.js";
import { asProblem, call } from "../lib/api.js";
import { activeColumn, variantOf } from "../lib/columns.js";
import { defaultVariant, modelOf, studyOf } from "../lib/facts.js";
import { range, requestForm } from "../lib/mask.js";
import { withUnknown } from "./tokens.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").Problem} Problem */

/**
 * @typedef {object} Loaded The attention of one pair, as far as it is here.
 * @property {string[]} originals the query and the title
 * @property {import("./tokens.js").Encoded} encoded with the text of unknown tokens
 * @property {Map<number, Float32Array>} heads n × n by index of the head
 */

const MAX_VALUES = 300_000; // some 3 MB of JSON, which take about 20 ms to read

/**
 * @typedef {object} Network The checkpoint whose heads are shown, which need not be the service's own.
 * @property {number} layers
 * @property {number} heads
 * @property {number} layer the chosen head's
 * @property {number} head
 * @property {import("../lib/types.js").Study | null} study
 */

/** @param {State} state @returns {Network} */
export function networkOf({ facts: loaded, columns, active, attention }) {
  const facts = /** @type {import("../lib/types.js").Facts} */ (loaded);
  const variant = attention.masked ? variantOf(facts, columns[active]) : defaultVariant(facts);
  const model = modelOf(facts, variant);
  return {
    layers: model.layers,
    heads: model.heads,
    layer: Math.min(attention.layer, model.layers - 1),
    head: Math.min(attention.head, model.heads - 1),
    study: studyOf(facts, variant),
  };
}

/**
 * @param {State} state @param {string} title
 * @returns {{loaded: Loaded | null, problem: Problem | null, retry: () => void}} `retry` asks now for what is missing
 */
export function useAttention(state, title) {
  const [loaded, setLoaded] = useState(/** @type {Loaded | null} */ (null));
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [tries, setTries] = useState(0);
  const how = state.attention.masked ? maskOf(state) : {};
  const pair = [state.query, title, JSON.stringify(how), state.facts];
  const heads = useMemo(() => /** @type {Loaded["heads"]} */ (new Map()), pair);
  useEffect(() => setLoaded(null), pair);
  useEffect(() => {
    const controller = new AbortController();
    setProblem(null);
    if (!state.query.trim() || !state.titles.length) return undefined;
    const body = { query: state.query, title, ...how };
    load(body, networkOf(state), heads, controller.signal, setLoaded, setProblem);
    return () => controller.abort();
  }, [...pair, tries]);
  return { loaded, problem, retry: () => setTries(tries + 1) };
}

/** @param {State} state @returns {object} the active mask as a request names it */
function maskOf(state) {
  const { mask, variant } = activeColumn(state);
  const shape = /** @type {import("../lib/mask.js").Shape} */ (state.facts?.model);
  return mask ? { head_mask: requestForm(mask, shape) } : { variant };
}

/**
 * Asks for the heads that are missing, a piece at a time. After an error that passes it waits and goes on.
 * @param {{query: string, title: string}} body @param {Network} network @param {Loaded["heads"]} found gets the heads that come
 * @param {AbortSignal} signal @param {(loaded: Loaded) => void} show @param {(problem: Problem | null) => void} complain
 */
async function load(body, { layers, heads, layer, head }, found, signal, show, complain) {
  const order = [head, ...range(layers * heads)].map((i) => (i + layer * heads) % (layers * heads));
  let step = 1; // the length of the pair is not known yet
  while (order.some((i) => !found.has(i))) {
    const missing = order.filter((i) => !found.has(i)).slice(0, step);
    const spec = missing.map((i) => `${Math.floor(i / heads)}.${i % heads}`).join();
    try {
      const reply = await call("v1/attention", { body: { ...body, heads: spec }, signal });
      for (const one of reply.heads) {
        found.set(one.layer * heads + one.head, Float32Array.from(one.probabilities.flat()));
      }
      const { tokens, texts, segments } = reply;
      step = Math.max(1, Math.floor(MAX_VALUES / tokens.length ** 2));
      const special = tokens.map((/** @type {string} */ _, /** @type {number} */ i) => reply.special.includes(i));
      const originals = [body.query, body.title];
      show({ originals, encoded: withUnknown({ tokens, texts, special, segments }, originals), heads: new Map(found) });
    } catch (error) {
      if (signal.aborted) return;
      const problem = asProblem(error);
      complain(problem);
      if (problem.retryAt === null) return;
      const wait = problem.retryAt - Date.now();
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }
  complain(null); // and not sooner: under a low rate every other request is refused
}
