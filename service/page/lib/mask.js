/**
 * Masks: a weight in [0, 1] for each head, layer by layer, and the layers that are skipped. The canonical spec and the
 * id are those of the service, so that what the page shows is what the service calls it.
 */

import { sha256 } from "./sha256.js";

/** @typedef {{layers: number, heads: number}} Shape */
/** @typedef {Float32Array} Weights layers × heads numbers, layer by layer: 1 keeps a head, 0 switches it off */

/**
 * @typedef {object} Mask
 * @property {Weights} weights 0 for the heads of skipped layers
 * @property {number[]} skipped the layers, ascending, that pass their input on unchanged
 */

/** @param {Shape} shape @returns {Mask} */
export function allOn({ layers, heads }) {
  return { weights: new Float32Array(layers * heads).fill(1), skipped: [] };
}

/**
 * @param {Mask} mask @param {Iterable<number>} indices @param {number} weight @param {Shape} shape
 * @returns {Mask} a new mask in which these heads have the weight; a layer with a head that is on is skipped no longer
 */
export function withWeight({ weights, skipped }, indices, weight, { heads }) {
  const changed = Float32Array.from(weights);
  for (const index of indices) changed[index] = weight;
  const isEmpty = (/** @type {number} */ layer) => changed.subarray(layer * heads, (layer + 1) * heads).every((one) => one === 0);
  return { weights: changed, skipped: skipped.filter(isEmpty) };
}

/** @param {Mask} mask @param {number[]} layers ascending @param {Shape} shape @returns {Mask} one that skips these layers */
export function withoutLayers({ weights }, layers, { heads }) {
  const changed = Float32Array.from(weights);
  for (const layer of layers) changed.fill(0, layer * heads, (layer + 1) * heads);
  return { weights: changed, skipped: layers };
}

/** @param {Mask} a @param {Mask} b @returns {Mask} both together: what either switches off is off */
export function combined(a, b) {
  const skipped = [...new Set([...a.skipped, ...b.skipped])].sort((one, other) => one - other);
  return { weights: a.weights.map((weight, i) => weight * b.weights[i]), skipped };
}

/** @param {Mask} mask */
export function headsOn({ weights }) {
  return weights.reduce((count, weight) => count + (weight > 0 ? 1 : 0), 0);
}

/** @param {Mask} mask */
export function isBinary({ weights }) {
  return weights.every((weight) => weight === 0 || weight === 1);
}

/** @param {Mask} a @param {Mask} b */
export function sameMask(a, b) {
  return a.weights.length === b.weights.length && a.weights.every((weight, i) => weight === b.weights[i]) &&
    a.skipped.join() === b.skipped.join();
}

/** @param {Mask} mask @param {Shape} shape @returns {string} 12 hexadecimal digits */
export function maskId({ weights, skipped }, { layers }) {
  const view = new DataView(new ArrayBuffer(4 * weights.length + (skipped.length ? layers : 0)));
  weights.forEach((weight, i) => view.setFloat32(4 * i, weight, true));
  if (skipped.length) {
    for (const layer of range(layers)) view.setUint8(4 * weights.length + layer, skipped.includes(layer) ? 0 : 1);
  }
  return sha256(new Uint8Array(view.buffer)).slice(0, 12);
}

/** @param {Mask} mask @param {Shape} shape @returns {string} the canonical spec */
export function canonical(mask, shape) {
  if (isBinary(mask)) return offSpec(mask, shape);
  return [`weights:${maskId(mask, shape)}`, ...skipItems(mask)].join();
}

/**
 * @param {Mask} mask @param {Shape} shape
 * @returns {string} the canonical spec of the heads whose weight is 0 and of the skipped layers
 */
export function offSpec(mask, { layers, heads }) {
  const off = Array.from({ length: layers }, (_, layer) =>
    range(heads).filter((head) => mask.weights[layer * heads + head] === 0 && !mask.skipped.includes(layer)),
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
  return [...items, ...skipItems(mask)].join() || "none";
}

/** @param {Mask} mask @returns {string[]} such as `skip:3`, `skip:6-11` */
function skipItems({ skipped }) {
  return runs(skipped).map((run) => `skip:${run}`);
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
 * @param {Mask} mask @param {Shape} shape
 * @returns {string | {weights: number[][], skip?: number[]}} the form that requests and the config take
 */
export function requestForm(mask, shape) {
  if (isBinary(mask)) return offSpec(mask, shape);
  const { layers, heads } = shape;
  const weights = range(layers).map((layer) =>
    Array.from(mask.weights.subarray(layer * heads, (layer + 1) * heads), tidy),
  );
  return mask.skipped.length ? { weights, skip: mask.skipped } : { weights };
}

/** @param {number} weight a float32 @returns {number} the shortest decimal that is the same float32 */
export function tidy(weight) {
  return Number(weight.toPrecision(7));
}

/** @param {number} length */
export function range(length) {
  return Array.from({ length }, (_, i) => i);
}
