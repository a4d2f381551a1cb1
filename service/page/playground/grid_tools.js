/** Tools on the active mask: its spec, whole halves, random heads, named masks, and the selected heads. */

import { useEffect, useState } from "../vendor/hooks.js";
import { activeColumn, edited, refusedColumn } from "../lib/columns.js";
import { isBare, isOrder, isOwn, maskOf, storedMasks } from "../lib/facts.js";
import { html } from "../lib/html.js";
import { allOn, canonical, isBinary, range, tidy, withWeight } from "../lib/mask.js";
import { MaskError, parseSpec } from "../lib/mask_spec.js";
import { current, update } from "../lib/store.js";
import { TypedInput, useTyped } from "../lib/typed.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").Facts} Facts */

/** @param {string} spec */
function use(spec) {
  const state = current();
  const facts = /** @type {Facts} */ (state.facts);
  update({ ...edited(state, parseSpec(spec, facts.model)), selection: [] });
}

/** @param {{state: State}} props */
export function Presets({ state }) {
  const { layers } = /** @type {Facts} */ (state.facts).model;
  const half = Math.floor(layers / 2);
  const takeSeed = (/** @type {string} */ text) => {
    const seed = Math.min(Number.MAX_SAFE_INTEGER, Math.max(0, Math.floor(Number(text) || 0))); // a spec writes its digits
    update({ seed });
    use(`random:0.2@${seed}`);
  };
  return html`
    <div class="presets" role="group" aria-label="Ready masks">
      <button onClick=${() => use("none")}>All on</button>
      <button disabled=${!half} onClick=${() => use(spanOf(0, half))}>Lower half off</button>
      <button disabled=${!half} onClick=${() => use(spanOf(half, layers))}>Upper half off</button>
      <span class="joined">
        <button onClick=${() => use(`random:0.2@${state.seed}`)}>Random 20 % off</button>
        <label>seed <${TypedInput} type="number" min="0" step="1" value=${`${state.seed}`} take=${takeSeed} /></label>
      </span>
      <${Named} state=${state} />
    </div>`;
}

/** @param {number} from @param {number} to */
function spanOf(from, to) {
  return `${from}-${to - 1}.*`;
}

/** @param {{state: State}} props */
function Named({ state }) {
  const facts = /** @type {Facts} */ (state.facts);
  const masks = facts.masks.filter((mask) => maskOf(mask.head_mask.spec, facts.model));
  const chosen = activeColumn(state).name ?? activeColumn(state).variant ?? "";
  const pick = (/** @type {Event} */ event) => {
    const select = /** @type {HTMLSelectElement} */ (event.target);
    const [kind, name] = select.value.split(/:(.*)/s);
    select.value = ""; // shows the name of the mask that there is, also after a change by hand
    const stored = storedMasks(facts).get(name);
    if (kind === "mask" && stored) update({ ...edited(current(), stored, { name }), selection: [] });
    if (kind === "variant") pickVariant(facts, name);
  };
  return html`
    <select aria-label="Named masks and variants" onChange=${pick} value="">
      <option value="" disabled>${chosen || "Named…"}</option>
      ${masks.length
        ? html`<optgroup label="Masks">
            ${masks.map((mask) => html`<option value=${`mask:${mask.name}`}>@${mask.name}</option>`)}
          </optgroup>`
        : null}
      <optgroup label="Variants">
        ${facts.variants.map((variant) => html`<option value=${`variant:${variant.name}`}>
          ${variant.name}${isOrder(variant) ? " (the titles' own order)" : ""}</option>`)}
      </optgroup>
    </select>`;
}

/**
 * Makes the active column a variant: a mask that the grid can edit, if it scores as the variant does.
 * @param {Facts} facts @param {string} name
 */
function pickVariant(facts, name) {
  const variant = facts.variants.find((one) => one.name === name);
  const mask = variant && isBare(facts) && isOwn(variant) ? maskOf(variant.head_mask.spec, facts.model) : null;
  update({ ...edited(current(), mask, { name, variant: mask ? null : name }), selection: [] });
}

/** @param {{state: State}} props What can be done to the selected heads; empty while none is. */
export function Selected({ state }) {
  const { selection } = state;
  const shape = /** @type {Facts} */ (state.facts).model;
  const { mask } = activeColumn(state);
  const first = mask && selection.length ? tidy(mask.weights[selection[0]]) : 1;
  const names = selection.map((index) => `${Math.floor(index / shape.heads)}.${index % shape.heads}`);
  if (!selection.length || !mask) return null;
  const set = (/** @type {number} */ weight) => {
    update(edited(current(), withWeight(mask, selection, weight, shape)));
  };
  const keepOnly = () => {
    const others = range(shape.layers * shape.heads).filter((index) => !selection.includes(index));
    update(edited(current(), withWeight(allOn(shape), others, 0, shape)));
  };
  const text = names.length > 1 ? `${names.length} heads selected` : `Head ${names[0]}`;
  return html`
    <div class="selected" role="group" aria-label="Selected heads">
      <span>${text}</span>
      <button onClick=${() => set(first > 0 ? 0 : 1)}>${first > 0 ? "Off" : "On"}</button>
      <button onClick=${keepOnly}>Keep only ${names.length > 1 ? "these" : "this"}</button>
      <label>weight
        <input type="range" min="0" max="1" step="0.05" value=${first}
          onInput=${(/** @type {Event} */ event) => set(Number(/** @type {HTMLInputElement} */ (event.target).value))} />
        <output>${first.toFixed(2)}</output>
      </label>
    </div>`;
}

/** @param {State} state @returns {string} the active mask's; empty for a variant that the grid cannot show */
function specOf(state) {
  const { mask } = activeColumn(state);
  return mask ? canonical(mask, /** @type {Facts} */ (state.facts).model) : "";
}

/** @param {{state: State}} props */
export function SpecField({ state }) {
  const facts = /** @type {Facts} */ (state.facts);
  const { mask } = activeColumn(state);
  const spec = specOf(state);
  const { typed, type, forget: forgetText } = useTyped(spec);
  const [wrong, setWrong] = useState("");
  const forget = () => {
    forgetText();
    setWrong("");
  };
  useEffect(forget, [spec, state.selection]); // a tool or the grid was used: what was typed counts no more
  const refused = refusedColumn(state) === state.active ? (state.problem?.message ?? "") : "";
  const take = (/** @type {string} */ text) => {
    // A click on the grid changes the mask before the field loses the focus: then the click counts.
    if (typed && typed.about !== specOf(current())) return forget();
    try {
      const changed = parseSpec(text, facts.model, storedMasks(facts));
      update({ ...edited(current(), changed), selection: [] });
      forget();
    } catch (error) {
      if (!(error instanceof MaskError)) throw error;
      setWrong(error.message);
    }
  };
  const value = (/** @type {Event} */ event) => /** @type {HTMLInputElement} */ (event.target).value;
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter") take(value(event));
    if (event.key === "Escape") forget();
  };
  return html`
    <div class="field spec">
      <label for="spec">Heads off, layers skipped ${mask && !isBinary(mask) ? "(some heads have weights of their own)" : ""}</label>
      <input id="spec" spellcheck="false" autocomplete="off" value=${typed?.text ?? spec} placeholder="2.3,7.*"
        aria-invalid=${wrong || refused ? "true" : null} aria-describedby="spec-wrong" onKeyDown=${keys}
        onInput=${(/** @type {Event} */ event) => type(value(event))}
        onChange=${(/** @type {Event} */ event) => take(value(event))} />
      <p class="wrong" id="spec-wrong" role="alert">${wrong || refused}</p>
    </div>`;
}
