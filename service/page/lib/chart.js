/** Lines over time. They differ by dash and by a name at their end. */

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { html } from "./html.js";

/** @typedef {{name: string, values: (number | null)[]}} Series */

const HEIGHT = 170;
const APART = 130; // pixels between two times under the axis, so that they do not touch
const EDGE = { left: 52, right: 84, top: 8, bottom: 20 };

/**
 * @param {{label: string, times: number[], series: Series[], format: (value: number) => string,
 *   clock: (time: number) => string}} props times: seconds since 1970
 */
export function Chart({ label, times, series, format, clock }) {
  const [box, width] = useWidth();
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const range = extent(series);
  const right = series.length > 1 ? EDGE.right : 16;
  const inner = Math.max(40, width - EDGE.left - right);
  const x = (/** @type {number} */ i) =>
    EDGE.left + (times.length < 2 ? 0 : (inner * (times[i] - times[0])) / ((times.at(-1) ?? 0) - times[0] || 1));
  const y = (/** @type {number} */ value) => {
    const share = (range[1] - value) / (range[1] - range[0]);
    return EDGE.top + (HEIGHT - EDGE.top - EDGE.bottom) * Math.min(1, Math.max(0, share));
  };
  const point = (/** @type {PointerEvent} */ event) => {
    const left = /** @type {Element} */ (event.currentTarget).getBoundingClientRect().left;
    const distances = times.map((_, i) => Math.abs(x(i) - (event.clientX - left)));
    setAt(distances.length ? distances.indexOf(Math.min(...distances)) : null);
  };
  const shown = at !== null && at < times.length ? at : times.length - 1;
  return html`
    <figure class="chart" ref=${box}>
      <figcaption><b>${label}</b>
        ${times.length ? html`<span class="soft"> ${clock(times[shown])}</span>` : null}
        ${series.map((one, i) => html`<span class="value">${dash(i)} ${one.name} ${valueAt(one, shown, format)}</span>`)}
      </figcaption>
      ${times.length < 2 || series.every(({ values }) => values.every((value) => value === null))
        ? html`<p class="soft waiting">Nothing to draw yet.</p>`
        : html`<svg width=${width} height=${HEIGHT} role="img" aria-label=${`${label}; the line above it reads out values`}
            onPointerMove=${point} onPointerLeave=${() => setAt(null)}>
            <${Axes} range=${range} y=${y} x=${x} times=${times} end=${EDGE.left + inner} format=${format} clock=${clock} />
            ${series.map((one, i) => html`<${Line} one=${one} number=${i} x=${x} y=${y} />`)}
            ${series.length > 1 ? html`<${Names} series=${series} y=${y} left=${EDGE.left + inner + 5} />` : null}
            ${at !== null ? html`<line class="rule" x1=${x(shown)} x2=${x(shown)} y1=${EDGE.top} y2=${HEIGHT - EDGE.bottom} />` : null}
          </svg>`}
    </figure>`;
}

/** @param {number} number @returns {string} how a line looks, in the caption */
function dash(number) {
  return ["—", "╌", "┈", "═", "┄"][number % 5];
}

/** @param {Series} one @param {number} i @param {(value: number) => string} format */
function valueAt(one, i, format) {
  const value = one.values[i];
  return value === null || value === undefined ? "–" : format(value);
}

/**
 * @param {{one: Series, number: number, x: (i: number) => number, y: (value: number) => number}} props
 */
function Line({ one, number, x, y }) {
  const { values } = one;
  const known = values.flatMap((value, i) => (value === null ? [] : [i]));
  if (!known.length) return null;
  const path = known.map((i, n) => `${n && known[n - 1] === i - 1 ? "L" : "M"}${x(i).toFixed(1)} ${y(values[i] ?? 0).toFixed(1)}`).join("");
  const last = /** @type {number} */ (known.at(-1));
  return html`
    <path class=${`line line-${number % 5}`} d=${path} />
    ${known.length === 1 ? html`<circle class="dot" cx=${x(last)} cy=${y(values[last] ?? 0)} r="2.5" />` : null}`;
}

/** @param {{series: Series[], y: (value: number) => number, left: number}} props each at its line's end, apart */
function Names({ series, y, left }) {
  const ends = series
    .flatMap(({ name, values }) => {
      const last = values.findLast((value) => value !== null);
      return last === undefined || last === null ? [] : [{ name, at: y(last) + 4 }];
    })
    .sort((a, b) => b.at - a.at);
  let free = Infinity;
  return ends.map(({ name, at }) => {
    free = Math.min(at, free - 12);
    return html`<text class="name" x=${left} y=${free}>${name}</text>`;
  });
}

/**
 * @param {{range: [number, number], times: number[], end: number, x: (i: number) => number,
 *   y: (value: number) => number, format: (value: number) => string, clock: (time: number) => string}} props
 */
function Axes({ range, times, end, x, y, format, clock }) {
  const last = times.length - 1;
  const centre = (x(0) + x(last)) / 2;
  const middle = times.reduce((best, _, i) => (Math.abs(x(i) - centre) < Math.abs(x(best) - centre) ? i : best), 0);
  const hasRoom = Math.min(x(middle) - x(0), x(last) - x(middle)) > APART;
  const labelled = hasRoom ? [0, middle, last] : [0, last];
  return html`
    <g class="axes">
      ${ticks(range).map((value) => html`
        <line x1=${EDGE.left} x2=${end} y1=${y(value)} y2=${y(value)} class=${value === 0 ? "zero" : ""} />
        <text x=${EDGE.left - 6} y=${y(value) + 4} text-anchor="end">${format(value)}</text>`)}
      ${labelled.map((i) => html`<text x=${x(i)} y=${HEIGHT - 4}
        text-anchor=${i === 0 ? "start" : i === last ? "end" : "middle"}>${clock(times[i])}</text>`)}
    </g>`;
}

/** @param {[number, number]} range @returns {number[]} three to six round values in it */
function ticks([low, high]) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough;
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high; n++) found.push(n * step || 0); // and not -0
  return found;
}

/** @param {Series[]} series @returns {[number, number]} with 0 */
function extent(series) {
  const known = [0, ...series.flatMap(({ values }) => values.map((value) => value ?? 0))].filter(Number.isFinite);
  const low = known.reduce((a, b) => Math.min(a, b));
  const high = known.reduce((a, b) => Math.max(a, b));
  if (low === high) return [0, 1];
  return [low - (low < 0 ? 0.06 : 0) * (high - low), high + 0.06 * (high - low)];
}

/** @returns {[{current: HTMLElement | null}, number]} an element's reference and its width */
function useWidth() {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(480);
  useEffect(() => {
    if (!box.current) return undefined;
    const watcher = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  return [box, width];
}
