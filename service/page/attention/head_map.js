/** One head as a map: rows look at columns; lines part query and title. */

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { percent } from "../lib/format.js";
import { isDark } from "../lib/theme.js";
import { partOf } from "./tokens.js";

/** @typedef {import("./tokens.js").Matrix} Matrix */

const SHADES = 9;

/** @param {{matrix: Matrix, from: number, choose: (token: number) => void, theme: string}} props */
export function HeadMap({ matrix, from, choose, theme }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [at, setAt] = useState(/** @type {[number, number] | null} */ (null));
  const size = matrix.labels.length;
  const step = Math.max(14, Math.min(26, Math.floor(600 / Math.max(1, size))));
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
        ? html`<bdi>${matrix.labels[row]}</bdi> <span>${partOf(matrix, row)}</span> → <bdi>${matrix.labels[column]}</bdi> <span>${partOf(matrix, column)}</span>: ${percent(matrix.values[row * size + column], 1)}`
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

/** @returns {[number, number, number][]} the theme's shades, from nothing to most */
function shades() {
  const style = getComputedStyle(document.documentElement);
  const which = isDark() ? 1 : 0;
  return Array.from({ length: SHADES }, (_, i) => {
    const hex = style.getPropertyValue(`--shade-${i}`).match(/#\w+/g)?.[which] ?? "#000000"; // light-dark(#…, #…)
    const part = (/** @type {number} */ at) => parseInt(hex.slice(at, at + 2), 16);
    return [part(1), part(3), part(5)];
  });
}

/** @param {Float32Array} values @returns {number} what the darkest shade stands for */
export function largest(values) {
  return values.reduce((most, value) => Math.max(most, value), 1e-9);
}

/** @param {number} value @param {number} most @returns {number} 0 to 1; the root shows small values too */
export function strength(value, most) {
  return Math.sqrt(Math.min(1, value / most));
}

/**
 * @param {HTMLCanvasElement} canvas gets `size` × `size` pixels
 * @param {Float32Array} values @param {number} size @param {number} most what the strongest shade stands for
 */
export function paint(canvas, values, size, most) {
  canvas.width = canvas.height = Math.max(1, size);
  const context = canvas.getContext("2d");
  if (!context || !size) return;
  const colours = shades();
  const image = context.createImageData(size, size);
  values.forEach((value, i) => {
    const at = strength(value, most) * (SHADES - 1);
    const low = Math.min(SHADES - 2, Math.floor(at));
    for (let part = 0; part < 3; part++) {
      image.data[4 * i + part] = colours[low][part] + (at - low) * (colours[low + 1][part] - colours[low][part]);
    }
    image.data[4 * i + 3] = 255;
  });
  context.putImageData(image, 0, 0);
}
