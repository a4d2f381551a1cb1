/** The masks side by side: which one the grid edits, and which one the others are measured against. */

import { added, labelOf, LETTERS, MAX_COLUMNS, pinned, removed } from "../lib/columns.js";
import { defaultVariant, drawnOf, isBare } from "../lib/facts.js";
import { Explained } from "../lib/explain.js";
import { html } from "../lib/html.js";
import { combined, headsOn } from "../lib/mask.js";
import { update } from "../lib/store.js";

/** @typedef {import("../lib/types.js").State} State */

const BASE = "The base: the other masks are measured against it. ▲▼ count places from it, Δ is the score minus its score. Press to let it go.";
const PIN = "Pin this mask as the base that the others are measured against.";

/** @param {{state: State}} props */
export function Masks({ state }) {
  const { columns } = state;
  return html`
    <div class="masks" role="group" aria-label="Masks that are compared">
      ${columns.map((one, i) => html`<${Chip} key=${one.id} state=${state} index=${i} />`)}
      ${columns.length < MAX_COLUMNS
        ? html`<button class="add" title="Compare one more mask, beginning as a copy of this one" aria-label="Compare one more mask"
            onClick=${() => update(added(state))}>+</button>`
        : null}
    </div>`;
}

/** @param {{state: State, index: number}} props */
function Chip({ state, index }) {
  const one = state.columns[index];
  const isActive = index === state.active;
  const isBase = index === state.baseline;
  const letter = LETTERS[index];
  const heads = one.mask ? headsText(state, one.mask) : "variant";
  return html`
    <div class=${`chip${isActive ? " active" : ""}`}>
      <button class="pick" aria-pressed=${isActive} onClick=${() => update({ active: index, selection: [] })}
        title="Edit this mask in the grid">
        <b class="letter">${letter}</b>
        <span class="label">${labelOf(state, one)}</span>
        <span class="soft">${heads}</span>
      </button>
      <${Explained} id=${`pin-${one.id}`} text=${isBase ? BASE : PIN}>
        <button class="pin" aria-pressed=${isBase} aria-describedby=${`pin-${one.id}`} onClick=${() => update(pinned(state, index))}
          aria-label=${isBase ? `base: mask ${letter}` : `pin mask ${letter} as the baseline`}>${isBase ? "base" : "pin"}</button>
      </${Explained}>
      ${state.columns.length > 1
        ? html`<button class="remove" aria-label=${`Remove mask ${letter}`}
            onClick=${() => update(removed(state, index))}>×</button>`
        : null}
    </div>`;
}

/**
 * @param {State} state @param {import("../lib/mask.js").Mask} own
 * @returns how many heads are on; a mask of the default variant is under every column
 */
function headsText({ facts }, own) {
  const variant = facts ? defaultVariant(facts) : undefined;
  const on = headsOn(own);
  const all = html`${own.weights.length}<span class="unit"> heads</span>`;
  if (!facts || !variant || isBare(facts)) return html`${on} of ${all}`;
  const mask = `with the mask of ${variant.name}`;
  const under = drawnOf(facts, variant);
  if (under) return html`${headsOn(combined(own, under))} of ${all}, ${mask}`;
  const kept = Math.min(on, variant.head_mask.heads_on); // which heads the default keeps is not known here
  return html`${on < own.weights.length ? "at most " : ""}${kept} of ${all}, ${mask}`;
}
