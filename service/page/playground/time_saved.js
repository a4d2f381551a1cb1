/** How much time the active mask saves, measured here and now: the same titles under both masks, in turns. */

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { asProblem, call } from "../lib/api.js";
import { activeColumn, LETTERS, variantOf } from "../lib/columns.js";
import { isOrder } from "../lib/facts.js";
import { percent } from "../lib/format.js";
import { html } from "../lib/html.js";
import { requestForm } from "../lib/mask.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").Column} Column */

const WARM_UP = 3;
const TURNS = 11;
const EDGE = 1; // from the second to the last but one of 11 values, the median's interval has a level of 98.8 %
const CACHED =
  "The service answered from kept scores, without the model, so there is no time to compare. " +
  "Measure on a service with score_cache_size 0 and without score_cache.";

/** @typedef {{done: number, text: string, wrong: boolean}} Measurement */

/** @param {{state: State}} props */
export function TimeSaved({ state }) {
  const [measured, show] = useState(/** @type {Measurement | null} */ (null));
  const flight = useRef(/** @type {AbortController | null} */ (null));
  const base = state.baseline === null ? null : state.columns[state.baseline];
  const active = activeColumn(state);
  useEffect(() => {
    show(null);
    return () => flight.current?.abort();
  }, [state.query, state.titles, state.columns, state.active, state.baseline, state.facts]);
  if (!base || base === active || !state.titles.length) return null;
  const { facts } = state;
  if (!facts || [base, active].some((one) => isOrder(variantOf(facts, one)))) return null; // an order takes no time in a model
  const names = `${LETTERS[state.active]} against ${LETTERS[state.baseline ?? 0]}`;
  const measure = () => {
    flight.current?.abort();
    flight.current = new AbortController();
    run(state, base, active, flight.current.signal, show);
  };
  return html`
    <div class="time">
      <button onClick=${measure} disabled=${Boolean(measured && measured.done < TURNS && !measured.wrong)}>
        Measure time, ${names}</button>
      <span role="status" class=${measured?.wrong ? "wrong" : ""}>${measured?.text}</span>
    </div>`;
}

/**
 * @param {State} state @param {Column} base @param {Column} active @param {AbortSignal} signal
 * @param {(measured: Measurement) => void} show
 */
async function run(state, base, active, signal, show) {
  /** @type {[number[], number[]]} */
  const times = [[], []];
  try {
    for (let turn = -WARM_UP; turn < TURNS; turn++) {
      show({ done: Math.max(0, turn), text: `turn ${Math.max(0, turn) + 1} of ${TURNS}…`, wrong: false });
      for (const which of turn % 2 ? [1, 0] : [0, 1]) {
        const reply = await call("v1/score", { body: bodyOf(state, which ? active : base), signal });
        if (turn >= 0 && !reply.timing_ms.inference) {
          show({ done: 0, text: CACHED, wrong: true });
          return;
        }
        if (turn >= 0) times[which].push(reply.timing_ms.inference);
      }
    }
    show({ done: TURNS, text: verdict(times, state.titles.length), wrong: false });
  } catch (error) {
    if (!signal.aborted) show({ done: 0, text: asProblem(error).message, wrong: true });
  }
}

/**
 * @param {State} state @param {Column} one
 * @returns {Record<string, unknown>} a request whose failure is an error, whatever the service's default
 */
function bodyOf({ query, titles, facts }, { mask, variant }) {
  const shape = /** @type {import("../lib/mask.js").Shape} */ (facts?.model);
  const network = mask ? { head_mask: requestForm(mask, shape) } : { variant };
  return { query, titles, ...network, on_failure: "error" };
}

/**
 * @param {[number[], number[]]} times milliseconds under both masks, turn by turn @param {number} titles
 * @returns {string} a claim only if the interval of the median share saved leaves out 0
 */
export function verdict([base, active], titles) {
  const shares = base.map((time, turn) => 1 - active[turn] / time).sort((x, y) => x - y);
  const [low, high] = [shares[EDGE], shares[shares.length - 1 - EDGE]];
  const about = `for ${titles} titles, in the model; 98.8 % interval of ${shares.length} turns`;
  if (low <= 0 && high >= 0) {
    return `No difference shown: from ${percent(Math.max(0, -low))} more to ${percent(Math.max(0, high))} saved (${about}). ` +
      "More titles or a quieter machine narrow it.";
  }
  const ends = [Math.abs(low), Math.abs(high)].sort((x, y) => x - y);
  const claim = `${percent(ends[0])} to ${percent(ends[1])} ${low > 0 ? "saved" : "more"}`;
  return `${claim}: ${median(active).toFixed(1)} ms instead of ${median(base).toFixed(1)} ms (medians, ${about}).`;
}

/** @param {number[]} values */
function median(values) {
  return values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
}
