/**
 * Head masks: a weight in [0, 1] for each head, layer by layer. The canonical spec and the id are those of the
 * service, so that what the page shows is what the service calls it.
 */

import { sha256 } from "./sha256.js";

/** @typedef {{layers: number, heads: number}} Shape */
/** @typedef {Float32Array} Weights layers × heads numbers, layer by layer: 1 keeps a head, 0 switches it off */

/** @param {Shape} shape @returns {Weights} */
export function allOn({ layers, heads }) {
  return new Float32Array(layers * heads).fill(1);
}

/**
 * @param {Weights} weights @param {Iterable<number>} indices @param {number} weight
 * @returns {Weights} a new mask in which these heads have the weight
 */
export function withWeight(weights, indices, weight) {
  const changed = Float32Array.from(weights);
  for (const index of indices) changed[index] = weight;
  return changed;
}

/** @param {Weights} weights */
export function headsOn(weights) {
  return weights.reduce((count, weight) => count + (weight > 0 ? 1 : 0), 0);
}

/** @param {Weights} weights */
export function isBinary(weights) {
  return weights.every((weight) => weight === 0 || weight === 1);
}

/** @param {Weights} a @param {Weights} b */
export function sameMask(a, b) {
  return a.length === b.length && a.every((weight, i) => weight === b[i]);
}

/** @param {Weights} weights @returns {string} 12 hexadecimal digits */
export function maskId(weights) {
  const view = new DataView(new ArrayBuffer(4 * weights.length));
  weights.forEach((weight, i) => view.setFloat32(4 * i, weight, true));
  return sha256(new Uint8Array(view.buffer)).slice(0, 12);
}

/** @param {Weights} weights @param {Shape} shape @returns {string} the canonical spec */
export function canonical(weights, shape) {
  return isBinary(weights) ? offSpec(weights, shape) : `weights:${maskId(weights)}`;
}

/**
 * @param {Weights} weights @param {Shape} shape
 * @returns {string} the canonical spec of the heads whose weight is 0
 */
export function offSpec(weights, { layers, heads }) {
  const off = Array.from({ length: layers }, (_, layer) =>
    range(heads).filter((head) => weights[layer * heads + head] === 0),
  );
  const items = [];
  for (let layer = 0; layer < layers; layer++) {
    if (off[layer].length < heads) {
      items.push(...runs(off[layer]).map((run) => `${layer}.${run}`));
    } else if (layer === 0 || off[layer - 1].length < heads) {
      let last = layer;
      while (last + 1 < layers && off[last + 1].length === heads) last++;
      items.push(`${last > layer ? `${layer}-${last}` : layer}.*`);
    }
  }
  return items.join(",") || "none";
}

/** @param {number[]} numbers ascending @returns {string[]} `a`, or `a-b` for consecutive ones */
function runs(numbers) {
  /** @type {number[][]} */
  const found = [];
  for (const number of numbers) {
    const run = found.at(-1);
    if (run && run[1] === number - 1) run[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`));
}

/**
 * @param {Weights} weights @param {Shape} shape
 * @returns {string | {weights: number[][]}} the form that requests and the config take
 */
export function requestForm(weights, shape) {
  if (isBinary(weights)) return offSpec(weights, shape);
  const { layers, heads } = shape;
  return {
    weights: range(layers).map((layer) =>
      Array.from(weights.subarray(layer * heads, (layer + 1) * heads), tidy),
    ),
  };
}

/** @param {number} weight a float32 @returns {number} the shortest decimal that is the same float32 */
export function tidy(weight) {
  return Number(weight.toPrecision(7));
}

/** @param {number} length */
export function range(length) {
  return Array.from({ length }, (_, i) => i);
}
