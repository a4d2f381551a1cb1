/** Fetches attention in pieces small enough that neither the service nor the page stalls: the shown head first. */

import { useEffect, useState } from "../vendor/hooks.js";
import { asProblem, call } from "../lib/api.js";
import { activeColumn } from "../lib/columns.js";
import { range, requestForm } from "../lib/mask.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").Problem} Problem */

/**
 * @typedef {object} Loaded The attention of one pair, as far as it is here.
 * @property {string[]} texts the query and the title
 * @property {string[]} tokens
 * @property {number[]} segments
 * @property {Map<number, Float32Array>} heads n × n by index of the head
 */

const MAX_VALUES = 300_000; // some 3 MB of JSON, which take about 20 ms to read

/**
 * @param {State} state @param {string} title
 * @returns {{loaded: Loaded | null, problem: Problem | null, again: () => void}}
 */
export function useAttention(state, title) {
  const [loaded, setLoaded] = useState(/** @type {Loaded | null} */ (null));
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [tries, setTries] = useState(0);
  const how = state.attention.masked ? maskOf(state) : {};
  useEffect(() => {
    const controller = new AbortController();
    setLoaded(null);
    setProblem(null);
    if (!state.query.trim()) return undefined;
    const body = { query: state.query, title, ...how };
    load(body, state, controller.signal, setLoaded).catch((error) => {
      if (!controller.signal.aborted) setProblem(asProblem(error));
    });
    return () => controller.abort();
  }, [state.query, title, JSON.stringify(how), tries, state.facts]);
  return { loaded, problem, again: () => setTries(tries + 1) };
}

/** @param {State} state @returns {object} the active mask as a request names it */
function maskOf(state) {
  const { weights, variant } = activeColumn(state);
  const shape = /** @type {import("../lib/mask.js").Shape} */ (state.facts?.model);
  return weights ? { head_mask: requestForm(weights, shape) } : { variant };
}

/**
 * @param {{query: string, title: string}} body @param {State} state @param {AbortSignal} signal @param {(loaded: Loaded) => void} show
 */
async function load(body, state, signal, show) {
  const { layers, heads } = /** @type {import("../lib/mask.js").Shape} */ (state.facts?.model);
  const { layer, head } = state.attention;
  /** @type {Map<number, Float32Array>} */
  const found = new Map();
  let reply = await call("v1/attention", { body: { ...body, heads: `${layer}.${head}` }, signal });
  const { tokens, segments } = reply;
  const take = () => {
    for (const one of reply.heads) {
      found.set(one.layer * heads + one.head, Float32Array.from(one.probabilities.flat()));
    }
    show({ texts: [body.query, body.title], tokens, segments, heads: new Map(found) });
  };
  take();
  const step = Math.max(1, Math.floor(MAX_VALUES / tokens.length ** 2));
  const order = range(layers * heads).map((i) => (i + layer * heads) % (layers * heads));
  for (let start = 0; start < order.length; start += step) {
    const spec = order.slice(start, start + step).map((i) => `${Math.floor(i / heads)}.${i % heads}`);
    reply = await call("v1/attention", { body: { ...body, heads: spec.join() }, signal });
    take();
  }
}
