/** The grid of switches, layers × heads: click, drag, a row's or a column's name, or the keyboard. */

import { useLayoutEffect, useRef, useState } from "../vendor/hooks.js";
import { activeColumn, drawn, drawnStudy, edited, offBy, variantOf } from "../lib/columns.js";
import { isOrder } from "../lib/facts.js";
import { Step } from "../lib/explain.js";
import { html } from "../lib/html.js";
import { range, withWeight } from "../lib/mask.js";
import { current, update } from "../lib/store.js";
import { Selected } from "./grid_tools.js";
import { Cell, HeadFacts, Legend, scaleOf } from "./head.js";
import { cellAt, onKey, rectangle } from "./grid_keys.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("./grid_keys.js").Place} Place */

const STEP_PX = 8; // a cell is at least 24 wide
const HINT = "Switch heads off: click one, drag over several, or click a number for its whole layer or column.";

/** @param {{state: State}} props */
export function HeadGrid({ state }) {
  const facts = /** @type {import("../lib/types.js").Facts} */ (state.facts);
  const shape = facts.model;
  const { mask, variant } = activeColumn(state);
  const { weights, skipped } = drawn(state, activeColumn(state));
  const [focus, setFocus] = useState(/** @type {Place} */ ({ layer: 0, head: 0 }));
  const [pointed, setPointed] = useState(/** @type {number | null} */ (null));
  const grid = useRef(/** @type {HTMLElement | null} */ (null));
  const moved = useRef(false);
  const anchor = useRef(/** @type {Place} */ (focus));
  const at = { layer: Math.min(focus.layer, shape.layers - 1), head: Math.min(focus.head, shape.heads - 1) };
  useLayoutEffect(() => {
    if (!moved.current || !grid.current) return;
    moved.current = false;
    cellAt(grid.current, at)?.focus();
  }, [focus]);
  const go = (/** @type {Place} */ place, /** @type {boolean} */ extend) => {
    moved.current = true;
    if (!extend) anchor.current = place;
    if (place.layer >= 0 && place.head >= 0) update({ selection: rectangle(anchor.current, place, shape) });
    setFocus(place);
  };
  const press = usePainting(shape, anchor, setFocus);
  const point = (/** @type {Event} */ event) => {
    const index = indexOf(event.target);
    if (index !== null) setPointed(index);
  };
  return html`
    ${state.step === 2
      ? html`<${Step} state=${state} number="2">${HINT}</${Step}>`
      : html`<p class="hint soft">${HINT}</p>`}
    <div class=${`grid-box${mask ? "" : " fixed"}`}>
      <div class="grid" role="grid" ref=${grid} aria-label="Heads: rows are layers, columns are heads"
        aria-multiselectable="true"
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => onKey(event, { at, shape, go, toggle: toggled })}
        onFocusIn=${(/** @type {FocusEvent} */ event) => { setFocus(placeOf(event.target) ?? at); point(event); }}
        onPointerDown=${press} onPointerOver=${point}>
        <${ColumnNames} shape=${shape} at=${at} />
        ${range(shape.layers).map(
          (layer) => html`<${Row} key=${layer} layer=${layer} state=${state} shape=${shape} at=${at} weights=${weights}
            isSkipped=${skipped.includes(layer)} />`,
        )}
      </div>
      ${mask ? null : html`<p class="soft">${isOrder(variantOf(facts, activeColumn(state)))
        ? "No head takes part: the titles keep their own order."
        : "The grid cannot edit this variant."}</p>`}
      ${weights.some(Number.isNaN)
        ? html`<p class="soft">Which heads ${mask ? "the default variant" : variant} has off is not known here: dotted.</p>`
        : null}
    </div>
    <div class="inspector">
      <${HeadFacts} state=${state} index=${pointed !== null && pointed < weights.length ? pointed : null} />
      <${Selected} state=${state} />
    </div>
    <${Legend} state=${state} />`;
}

/** @param {{shape: import("../lib/mask.js").Shape, at: Place}} props */
function ColumnNames({ shape, at }) {
  return html`
    <div role="row" class="row names">
      <span role="columnheader" class="corner"><span class="unseen">layer</span></span>
      ${range(shape.heads).map(
        (head) => html`
          <div role="columnheader" data-at=${`-1.${head}`} tabindex=${at.layer === -1 && at.head === head ? 0 : -1}
            title=${`Head ${head} of every layer`} aria-label=${`head ${head} of every layer`}
            onClick=${() => toggled({ layer: -1, head })}>${head}</div>`,
      )}
    </div>`;
}

/**
 * @param {{layer: number, state: State, shape: import("../lib/mask.js").Shape, at: Place,
 *   weights: import("../lib/mask.js").Weights, isSkipped: boolean}} props
 */
function Row({ layer, state, shape, at, weights, isSkipped }) {
  const study = drawnStudy(state);
  return html`
    <div role="row" class=${`row${isSkipped ? " skipped" : ""}`}>
      <div role="rowheader" data-at=${`${layer}.-1`} tabindex=${at.layer === layer && at.head === -1 ? 0 : -1}
        title=${isSkipped ? `Layer ${layer} is skipped. Click to take it in again` : `All heads of layer ${layer}`}
        aria-label=${`layer ${layer}, ${isSkipped ? "skipped" : "all heads"}`}
        onClick=${() => toggled({ layer, head: -1 })}>${layer}</div>
      ${range(shape.heads).map((head) => {
        const index = layer * shape.heads + head;
        return html`<${Cell} key=${head} index=${index} layer=${layer} head=${head} weight=${weights[index]} by=${offBy(state, index)}
          finding=${study?.heads[index] ?? null} study=${study} scale=${scaleOf(study)}
          selected=${state.selection.includes(index)} focused=${at.layer === layer && at.head === head} />`;
      })}
    </div>`;
}

/** @param {Place} place switches a head, or with -1 a whole layer or column: off if any of it is on */
function toggled({ layer, head }) {
  const state = current();
  const { mask } = activeColumn(state);
  const shape = state.facts?.model;
  if (!mask || !shape) return;
  const at = { layer: layer < 0 ? shape.layers - 1 : layer, head: head < 0 ? shape.heads - 1 : head };
  const heads = rectangle({ layer: Math.max(layer, 0), head: Math.max(head, 0) }, at, shape);
  const single = layer >= 0 && head >= 0;
  const chosen = single && state.selection.length > 1 && state.selection.includes(heads[0]) ? state.selection : heads;
  const wanted = chosen.filter((index) => !offBy(state, index));
  if (!wanted.length) return;
  const on = wanted.some((index) => mask.weights[index] > 0);
  update({ ...edited(state, withWeight(mask, wanted, on ? 0 : 1, shape)), selection: wanted });
}

/** @param {EventTarget | null} target @returns {Place | null} */
function placeOf(target) {
  const found = /^(-?\d+)\.(-?\d+)$/.exec((target instanceof Element && target.getAttribute("data-at")) || "");
  return found && { layer: Number(found[1]), head: Number(found[2]) };
}

/** @param {EventTarget | null} target @returns {number | null} the head under a pointer */
function indexOf(target) {
  const cell = target instanceof Element ? target.closest("[data-index]") : null;
  return cell ? Number(cell.getAttribute("data-index")) : null;
}

/** @typedef {{x: number, y: number}} Point in the window */

/** @param {Point} from @param {Point} to @returns {Point[]} points on the way, so close that they skip no cell; the last is `to` */
function between(from, to) {
  const steps = Math.max(1, Math.ceil(Math.hypot(to.x - from.x, to.y - from.y) / STEP_PX));
  return range(steps).map((step) => {
    const share = (step + 1) / steps;
    return { x: from.x + share * (to.x - from.x), y: from.y + share * (to.y - from.y) };
  });
}

/**
 * Painting: the first cell that is pressed decides whether heads go on or off, those that the pointer then
 * crosses follow. With shift a rectangle is selected instead.
 * @param {import("../lib/mask.js").Shape} shape @param {{current: Place}} anchor
 * @param {(place: Place) => void} setFocus
 */
function usePainting(shape, anchor, setFocus) {
  return (/** @type {PointerEvent} */ event) => {
    const index = indexOf(event.target);
    const { columns, selection } = current();
    const before = activeColumn(current()).mask;
    if (index === null || event.button !== 0 || !before || offBy(current(), index)) return;
    const place = { layer: Math.floor(index / shape.heads), head: index % shape.heads };
    setFocus(place);
    if (event.shiftKey) {
      event.preventDefault();
      update({ selection: rectangle(anchor.current, place, shape) });
      return;
    }
    anchor.current = place;
    const weight = before.weights[index] > 0 ? 0 : 1;
    /** @type {Set<number>} */
    const crossed = new Set();
    const cross = (/** @type {number | null} */ at) => {
      if (at === null || crossed.has(at) || offBy(current(), at)) return;
      crossed.add(at);
      const state = current();
      const now = activeColumn(state).mask;
      if (now) update({ ...edited(state, withWeight(now, [at], weight, shape)), selection: [...crossed] });
    };
    let from = { x: event.clientX, y: event.clientY };
    const move = (/** @type {PointerEvent} */ next) => {
      for (const { clientX: x, clientY: y } of [...(next.getCoalescedEvents?.() ?? []), next]) { // plain http has none
        for (const point of between(from, { x, y })) cross(indexOf(document.elementFromPoint(point.x, point.y)));
        from = { x, y };
      }
    };
    const end = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      removeEventListener("pointercancel", cancel);
    };
    const cancel = () => {
      end();
      update({ columns, selection }); // a finger that scrolls the page switches nothing
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", cancel);
    cross(index);
  };
}
