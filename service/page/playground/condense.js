/** A long query gets shorter: its words are struck out one by one, and the loss of each length is shown; or it
 * is written anew. */

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { asProblem, call } from "../lib/api.js";
import { activeColumn, LETTERS } from "../lib/columns.js";
import { signed } from "../lib/format.js";
import { html } from "../lib/html.js";
import { requestForm } from "../lib/mask.js";
import { update } from "../lib/store.js";
import { Trouble } from "../lib/trouble.js";
import { Written } from "./written.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").Problem} Problem */
/** @typedef {{word: string, form: string, kept: boolean, importance: number}} Word */
/** @typedef {{words: number, query: string, left_out: number | null, loss: number, measured: boolean}} Length */
/** @typedef {{condensed: string, method: "greedy" | "leave_one_out", words: Word[], path: Length[], note: string | null}} Condensed */
/** @typedef {import("./written.js").Generated} Generated */

const MIN_WORDS = 3;
const WORDS = /[\u3400-\u4dbf\u4e00-\u9fff]|[^\s\u3400-\u4dbf\u4e00-\u9fff]+/g; // at most: the service may take several Chinese characters for one word
const GENERATE = "generate";
const METHODS = [
  ["greedy", "one deletion after the other"],
  ["leave_one_out", "each word left out alone"],
  [GENERATE, "writing it anew"],
];
const BEAMS = 4;
const REFUSED = 422; // the same request would be refused again
const BAR = 14;
const HEIGHT = 34;

/** @param {{state: State}} props */
export function Condense({ state }) {
  const [answer, show] = useState(/** @type {Condensed | Generated | null} */ (null));
  const [problem, complain] = useState(/** @type {Problem | null} */ (null));
  const [busy, setBusy] = useState(false);
  const [method, setMethod] = useState(METHODS[0][0]);
  const flight = useRef(/** @type {AbortController | null} */ (null));
  useEffect(() => {
    show(null);
    complain(null);
    setBusy(false);
    return () => flight.current?.abort();
  }, [state.query, state.titles, state.columns, state.active, state.facts, method]);
  if ((state.query.match(WORDS) ?? []).length < MIN_WORDS || !state.titles.length) return null;
  const ask = async () => {
    flight.current?.abort();
    const controller = new AbortController();
    flight.current = controller;
    setBusy(true);
    complain(null);
    try {
      show(await call("v1/condense", { body: bodyOf(state, method), signal: controller.signal }));
    } catch (error) {
      if (!controller.signal.aborted) complain(asProblem(error));
    }
    if (!controller.signal.aborted) setBusy(false);
  };
  return html`
    <section class="condense" aria-label="A shorter query" aria-busy=${busy}>
      <div class="presets">
        <button onClick=${ask} disabled=${busy}>${busy ? "Condensing…" : "Condense the query"}</button>
        <label>by <select value=${method} onChange=${(/** @type {Event} */ event) => setMethod(valueOf(event))}>
          ${METHODS.filter(([name]) => name !== GENERATE || state.facts?.model.generator).map(([name, about]) => html`<option value=${name}>${about}</option>`)}
        </select></label>
        <span class="soft">${method === GENERATE ? "A short query, also with other words" : "The words that keep the judgments of these titles"}, under mask ${LETTERS[state.active]}.</span>
      </div>
      ${problem ? html`<${Trouble} problem=${problem} retry=${problem.status === REFUSED ? undefined : ask} />` : null}
      ${answer ? shown(state.query, answer) : null}
    </section>`;
}

/** @param {string} query @param {Condensed | Generated} answer */
function shown(query, answer) {
  if (answer.method === GENERATE) return html`<${Written} key=${answer.condensed} answer=${answer} />`;
  return html`<${Shorter} key=${answer.path.length} query=${query} answer=${answer} />`;
}

/** @param {State} state @param {string} method */
function bodyOf(state, method) {
  const { query, titles, facts } = state;
  const { mask, variant } = activeColumn(state);
  const shape = /** @type {import("../lib/mask.js").Shape} */ (facts?.model);
  const how = mask ? { head_mask: requestForm(mask, shape) } : { variant };
  if (method === GENERATE) return { query, method, beams: BEAMS, heads: "*.*", ...how };
  return { query, titles, method, ...how };
}

/** @param {{query: string, answer: Condensed}} props */
function Shorter({ query, answer }) {
  const { words, path } = answer;
  const first = words.filter((word) => word.kept).length;
  const [count, setCount] = useState(first);
  useEffect(() => setCount(first), [answer]);
  const place = path.length - count;
  const length = path[place];
  const out = new Set(path.slice(1, place + 1).map((step) => step.left_out));
  const loss = lossText(length);
  const between = gaps(query, words);
  return html`
    <p class="struck" dir="auto">
      ${words.map((word, i) => html`${between[i]}${out.has(i)
        ? html`<del title=${importance(word)}>${word.word}</del>`
        : html`<span title=${importance(word)}>${word.word}</span>`}`)}${between[words.length]}
    </p>
    <div class="lengths">
      <label for="words-kept">Words kept</label>
      <input id="words-kept" type="range" min="1" max=${path.length} step="1" value=${count}
        aria-valuetext=${`${count} of ${path.length} words, ${loss}`}
        onInput=${(/** @type {Event} */ event) => setCount(Number(valueOf(event)))} />
      <output for="words-kept">${count} of ${path.length}, ${loss}</output>
      <${Losses} path=${path} place=${place} />
      <button onClick=${() => update({ query: length.query })}>Use “<bdi>${length.query}</bdi>”</button>
    </div>
    ${answer.note ? html`<p class="soft">${answer.note}</p>` : null}`;
}

/** @param {string} query @param {Word[]} words @returns {string[]} what was typed before each word, and after the last */
function gaps(query, words) {
  let end = 0;
  const before = words.map(({ word }) => {
    const start = query.indexOf(word, end);
    const gap = query.slice(end, start);
    end = start + word.length;
    return gap;
  });
  return [...before, query.slice(end)];
}

/** @param {{path: Length[], place: number}} props one bar for each length, all words on the right as on the slider */
function Losses({ path, place }) {
  const largest = Math.max(0.001, ...path.map((length) => length.loss));
  return html`
    <svg class="losses" width=${BAR * path.length} height=${HEIGHT} aria-hidden="true">
      ${path.map((length, i) => {
        const height = Math.max(1, (HEIGHT * Math.max(0, length.loss)) / largest);
        const x = BAR * (path.length - 1 - i) + 1;
        return html`<rect class=${`${i === place ? "here" : ""}${length.measured ? "" : " guessed"}`} x=${x}
          y=${HEIGHT - height} width=${BAR - 2} height=${height} />`;
      })}
    </svg>`;
}

/** @param {Length} length */
function lossText({ loss, measured }) {
  return `${measured ? "loss" : "estimated loss"} ${loss < 0 ? signed(loss, 3) : loss.toFixed(3)}`;
}

/** @param {Word} word */
function importance({ form, importance: value }) {
  return `${form}: importance ${value.toPrecision(2)}`;
}

/** @param {Event} event */
function valueOf(event) {
  return /** @type {HTMLInputElement} */ (event.target).value;
}
