/** The grid under the keyboard, as the ARIA practices for grids have it. */

/** @typedef {import("../lib/mask.js").Shape} Shape */
/** @typedef {{layer: number, head: number}} Place -1 is the names' row or column */

/** @param {Element} grid @param {Place} place @returns {HTMLElement | null} */
export function cellAt(grid, { layer, head }) {
  return grid.querySelector(`[data-at="${layer}.${head}"]`);
}

/** @param {Place} from @param {Place} to @param {Shape} shape @returns {number[]} the heads between two corners */
export function rectangle(from, to, { heads }) {
  const found = [];
  for (let layer = Math.min(from.layer, to.layer); layer <= Math.max(from.layer, to.layer); layer++) {
    for (let head = Math.min(from.head, to.head); head <= Math.max(from.head, to.head); head++) {
      if (layer >= 0 && head >= 0) found.push(layer * heads + head);
    }
  }
  return found;
}

/**
 * Arrows move, with shift they select; Home and End go along the row, with Control to the corners; Space and
 * Enter switch.
 * @param {KeyboardEvent} event
 * @param {{at: Place, shape: Shape, go: (place: Place, extend: boolean) => void, toggle: (place: Place) => void}} grid
 */
export function onKey(event, { at, shape, go, toggle }) {
  if (event.altKey || event.metaKey) return;
  if (event.key === " " || event.key === "Enter") {
    event.preventDefault();
    if (!event.repeat) toggle(at);
    return;
  }
  const next = moved(event, at, shape);
  if (!next) return;
  event.preventDefault();
  const place = {
    layer: Math.min(Math.max(next.layer, -1), shape.layers - 1),
    head: Math.min(Math.max(next.head, -1), shape.heads - 1),
  };
  if (place.layer >= 0 || place.head >= 0) go(place, event.shiftKey); // nothing is in the corner
}

/** @param {KeyboardEvent} event @param {Place} at @param {Shape} shape @returns {Place | null} */
function moved(event, { layer, head }, shape) {
  const everywhere = event.ctrlKey;
  switch (event.key) {
    case "ArrowUp":
      return { layer: layer - 1, head };
    case "ArrowDown":
      return { layer: layer + 1, head };
    case "ArrowLeft":
      return { layer, head: head - 1 };
    case "ArrowRight":
      return { layer, head: head + 1 };
    case "Home":
      return { layer: everywhere ? 0 : layer, head: 0 };
    case "End":
      return { layer: everywhere ? shape.layers - 1 : layer, head: shape.heads - 1 };
    case "PageUp":
      return { layer: 0, head };
    case "PageDown":
      return { layer: shape.layers - 1, head };
    default:
      return null;
  }
}
