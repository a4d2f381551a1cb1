/** Words that explain themselves where they stand, and the three steps of a first visit. */

import { useId, useState } from "../vendor/hooks.js";
import { html } from "./html.js";
import { load, save } from "./storage.js";
import { update } from "./store.js";

const STEPS = 3;
const STEP = "headroom-step";
const WORDS = /** @type {Record<string, [string, string]>} */ ({
  qwk: ["QWK", "Quadratic weighted kappa: how well the grades agree with people's. 1 is perfect, 0 is chance; a grade that is far off costs more."],
  ndcg10: ["NDCG@10", "How good the ten best titles of a query are, in their order. 1 is the best order that there is."],
  accuracy: ["accuracy", "Share of the titles that get the grade that people gave them."],
  pair_accuracy: ["pair accuracy", "Share of two titles of a query, of different grades, that are in the right order. Half is chance."],
});

/** @param {string} word @returns {string} what it is called */
export function nameOf(word) {
  return WORDS[word]?.[0] ?? word;
}

/**
 * @param {{word: string, name?: string}} props a word that shows what it means under the pointer, the focus or a finger;
 *   name: what it is called if it is none of ours
 */
export function Term({ word, name: given }) {
  const id = useId();
  if (!(word in WORDS)) return html`<span>${given ?? word}</span>`;
  const [name, text] = WORDS[word];
  return html`<${Explained} id=${id} text=${text}><button class="term" aria-describedby=${id}>${name}</button></${Explained}>`;
}

/** @param {{id: string, text: string, children?: unknown}} props children: a button that is described by `id` */
export function Explained({ id, text, children }) {
  const [hidden, hide] = useState(false); // Escape hides the text until the pointer or the focus comes again
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") hide(true);
  };
  return html`
    <span class="explained" onKeyDown=${keys} onPointerEnter=${() => hide(false)} onFocusIn=${() => hide(false)}>
      ${children}<span role="tooltip" class=${hidden ? "unseen" : "tip"} id=${id}>${text}</span>
    </span>`;
}

/** Continues the steps of an earlier visit; who went through them or skipped them sees none. */
export function rememberStep() {
  const step = Number(load("localStorage", STEP) ?? 1);
  update({ step: step <= STEPS ? step : 0 });
}

/** @param {{state: import("./types.js").State, number: string, children?: unknown}} props shown while it is this step's turn */
export function Step({ state, number, children }) {
  if (state.step !== Number(number)) return null;
  const go = (/** @type {number} */ step) => {
    save("localStorage", STEP, `${step}`);
    update({ step: step <= STEPS ? step : 0 });
  };
  return html`
    <p class="step"><b class="letter">${number}</b> <span>${children}</span>
      <button class="strong" onClick=${() => go(state.step + 1)}>${state.step < STEPS ? "Next" : "Done"}</button>
      ${state.step < STEPS ? html`<button class="quiet" onClick=${() => go(STEPS + 1)}>Skip</button>` : null}
    </p>`;
}
