/** One head as a map: rows look at columns; lines part query and title. */

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { percent } from "../lib/format.js";
import { largest, paint } from "./paint.js";

/** @typedef {import("./tokens.js").Matrix} Matrix */

/** @param {{matrix: Matrix, from: number, choose: (token: number) => void, theme: string}} props */
export function HeadMap({ matrix, from, choose, theme }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [at, setAt] = useState(/** @type {[number, number] | null} */ (null));
  const size = matrix.labels.length;
  const step = Math.max(10, Math.min(26, Math.floor(600 / Math.max(1, size))));
  useEffect(() => {
    if (canvas.current) paint(canvas.current, matrix.values, size, largest(matrix.values));
  }, [matrix, theme]);
  const place = (/** @type {PointerEvent} */ event) => {
    const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    const cell = (/** @type {number} */ offset) => Math.min(size - 1, Math.max(0, Math.floor(offset / step)));
    return /** @type {[number, number]} */ ([cell(event.clientY - box.top), cell(event.clientX - box.left)]);
  };
  const [row, column] = at ?? [from, -1];
  const most = largest(matrix.values);
  return html`
    <p class="soft map-line" role="status">
      ${at
        ? html`<bdi>${matrix.labels[row]}</bdi> → <bdi>${matrix.labels[column]}</bdi>: ${percent(matrix.values[row * size + column], 1)}`
        : `The strongest shade is ${percent(most, 1)}. Point at the map to read it.`}
    </p>
    <div class="map-scroll" tabindex="0" role="region" aria-label="Attention map">
      <div class="map" style=${{ "--step": `${step}px`, "--size": size }}>
        <div class="columns" aria-hidden="true">
          ${matrix.labels.map((label, i) => html`<span class=${i === column ? "on" : ""}><bdi>${label}</bdi></span>`)}
        </div>
        <div class="rows">
          ${matrix.labels.map((label, i) => html`
            <button tabindex="-1" class=${i === row ? "on" : ""} onClick=${() => choose(i)}><bdi>${label}</bdi></button>`)}
        </div>
        <div class="field-of-cells" onPointerMove=${(/** @type {PointerEvent} */ event) => setAt(place(event))}
          onPointerLeave=${() => setAt(null)} onClick=${(/** @type {PointerEvent} */ event) => choose(place(event)[0])}>
          <canvas ref=${canvas} role="img" aria-label=${`Map of ${size} by ${size} tokens; the text above reads it out`}></canvas>
          <${Borders} segments=${matrix.segments} step=${step} />
        </div>
      </div>
    </div>`;
}

/** @param {{segments: number[], step: number}} props where the title begins */
function Borders({ segments, step }) {
  const border = segments.indexOf(1);
  if (border <= 0) return null;
  return html`<i class="border across" style=${{ top: `${border * step}px` }}></i>
    <i class="border down" style=${{ left: `${border * step}px` }}></i>`;
}
