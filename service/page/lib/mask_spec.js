/** The text form of masks of heads, `2.3,4.*`, read exactly as the service reads it; the grid has no `skip:`. */

import { allOn, range, withWeight } from "./mask.js";
import { sha256 } from "./sha256.js";

/** @typedef {import("./mask.js").Shape} Shape */
/** @typedef {import("./mask.js").Weights} Weights */

export class MaskError extends Error {}

const ITEM = /^(\*|[0-9]+(?:-[0-9]+)?)\.(\*|[0-9]+(?:-[0-9]+)?)$/;
const RANDOM = /^([^@/]*)@([^/]*)(?:\/(.*))?$/s;
const DECIMAL = /^[0-9]+(?:\.[0-9]+)?$/;
const SPACES = /^[ \t\r\n]+|[ \t\r\n]+$/g;

/**
 * @param {string} spec @param {Shape} shape
 * @param {Map<string, Weights>} [stored] the model's masks by name, for `@name`
 * @returns {Weights}
 * @throws {MaskError} one sentence: what is wrong, where, and the valid range
 */
export function parseSpec(spec, shape, stored = new Map()) {
  const text = spec.replace(SPACES, "");
  if (!text) throw new MaskError("the spec is empty; 'none' keeps every head");
  if (text.startsWith("@")) return storedMask(text.slice(1), stored);
  if (text === "none") return allOn(shape);
  if (text.startsWith("keep:")) {
    const kept = new Set(listed(text.slice(5), shape));
    return off(everyHead(shape).filter((index) => !kept.has(index)), shape);
  }
  if (text.startsWith("random:")) return off(drawn(text.slice(7), shape), shape);
  if (text.startsWith("weights:")) throw new MaskError(`${shown(text)} only names a matrix`);
  return off(listed(text, shape), shape);
}

/** @param {Iterable<number>} indices @param {Shape} shape */
function off(indices, shape) {
  return withWeight(allOn(shape), indices, 0);
}

/** @param {Shape} shape */
function everyHead({ layers, heads }) {
  return range(layers * heads);
}

/** @param {string} name @param {Map<string, Weights>} stored */
function storedMask(name, stored) {
  const weights = stored.get(name);
  if (weights) return weights;
  const names = [...stored.keys()].sort().slice(0, 20).join(", ") || "none";
  throw new MaskError(`no mask is stored as ${shown(name)}; this model's stored masks: ${names}`);
}

/** @param {string} text a list such as `2.3,4.0-5,7.*` @param {Shape} shape @returns {number[]} indices */
function listed(text, shape) {
  const items = text.split(",").map((item) => item.replace(SPACES, ""));
  return items.flatMap((item, i) => {
    const match = ITEM.exec(item);
    if (!match) {
      const wrong = item ? shown(item) : `item ${i + 1}, which is empty,`;
      const valid = `${validRange("layer", shape)} and ${validRange("head", shape)}`;
      throw new MaskError(`${wrong} is not layer.head (such as 2.3, 6-11.* or *.0); this model has ${valid}`);
    }
    const where = items.length > 1 ? ` (item ${i + 1}, ${shown(item)})` : "";
    const layers = span(match[1], "layer", shape, where);
    const heads = span(match[2], "head", shape, where);
    return layers.flatMap((layer) => heads.map((head) => layer * shape.heads + head));
  });
}

/**
 * @param {string} text `*`, `a` or `a-b` @param {"layer" | "head"} axis @param {Shape} shape
 * @param {string} where
 */
function span(text, axis, shape, where) {
  const size = shape[`${axis}s`];
  if (text === "*") return range(size);
  const [first, last = first] = text.split("-");
  const [start, stop] = [first, last].map((digits) => {
    const number = Number(digits);
    if (number < size) return number;
    throw new MaskError(`${axis} ${shorter(digits)} does not exist; this model has ${validRange(axis, shape)}${where}`);
  });
  if (start <= stop) return range(stop - start + 1).map((i) => start + i);
  throw new MaskError(`the ${axis} range ${start}-${stop} runs backwards; write ${stop}-${start}${where}`);
}

/** @param {"layer" | "head"} axis @param {Shape} shape */
function validRange(axis, shape) {
  const size = shape[`${axis}s`];
  return size > 1 ? `${axis}s 0 to ${size - 1}` : `only ${axis} 0`;
}

/** @param {string} text `fraction@seed` or `fraction@seed/list` @param {Shape} shape @returns {number[]} */
function drawn(text, shape) {
  const match = RANDOM.exec(text);
  if (!match) throw new MaskError(`${shown(`random:${text}`)} has no seed; write random:fraction@seed (random:0.2@7)`);
  const [, fraction, seed, list] = match;
  if (!DECIMAL.test(fraction) || exceedsOne(fraction)) {
    throw new MaskError(`the fraction ${shown(fraction)} of 'random' is not a decimal from 0 to 1 (0.2)`);
  }
  if (!/^[0-9]+$/.test(seed)) {
    throw new MaskError(`the seed ${shown(seed)} of 'random' is not a decimal integer from 0 up (7)`);
  }
  const candidates = list === undefined ? everyHead(shape) : [...new Set(listed(list, shape))];
  const plainSeed = seed.replace(/^0+(?=.)/, "");
  const encoder = new TextEncoder();
  const digests = new Map(
    candidates.map((index) => {
      const head = `${plainSeed}:${Math.floor(index / shape.heads)}.${index % shape.heads}`;
      return [index, sha256(encoder.encode(head))];
    }),
  );
  const order = candidates.sort((a, b) => (String(digests.get(a)) < String(digests.get(b)) ? -1 : 1));
  return order.slice(0, share(fraction, candidates.length));
}

/** @param {string} fraction a decimal */
function exceedsOne(fraction) {
  const [whole, part = ""] = fraction.split(".");
  return BigInt(whole) > 1n || (BigInt(whole) === 1n && /[1-9]/.test(part));
}

/**
 * floor(fraction · count + 0.5) in whole numbers: 0.145 of 100 is 14.5 and rounds up; in binary it is less.
 * @param {string} fraction @param {number} count
 */
function share(fraction, count) {
  const [whole, part = ""] = fraction.split(".");
  const scale = 10n ** BigInt(part.length);
  return Number((2n * BigInt(whole + part) * BigInt(count) + scale) / (2n * scale));
}

/** @param {string} text */
function shown(text) {
  return `'${shorter(text)}'`;
}

/** @param {string} text */
function shorter(text) {
  return text.length <= 40 ? text : `${text.slice(0, 39)}…`;
}
