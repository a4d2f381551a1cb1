/** The text form of masks, `2.3,4.*,skip:6-11`, read exactly as the service reads it. */

import { beginning } from "./format.js";
import { allOn, range, withoutLayers, withWeight } from "./mask.js";
import { sha256 } from "./sha256.js";

/** @typedef {import("./mask.js").Shape} Shape */
/** @typedef {import("./mask.js").Mask} Mask */
/** @typedef {{text: string, number: number, isOnly: boolean}} Item One of a list, and its number, from 1. */

export class MaskError extends Error {}

const MAX_LENGTH = 32_768;
const ITEM = /^(\*|[0-9]+(?:-[0-9]+)?)\.(\*|[0-9]+(?:-[0-9]+)?)$/;
const SKIP = /^skip:(\*|[0-9]+(?:-[0-9]+)?)$/;
const RANDOM = /^random:([^@/]*)@([^/]*)(?:\/(.*))?$/s;
const DECIMAL = /^[0-9]+(?:\.[0-9]+)?$/;
const GENERATOR = /^[ \t\r\n]*(decoder|cross)[ \t\r\n]*:/;
const SPACES = /^[ \t\r\n]+|[ \t\r\n]+$/g;
const NAMED = /** @type {Record<string, string>} */ ({
  weights: "a matrix; send the matrix as the JSON form 'weights'",
  units: "a set of units; name the stored mask (@name) that holds it",
});

/**
 * @param {string} spec @param {Shape} shape
 * @param {Map<string, Mask | null>} [stored] the model's masks by name, for `@name`; null: one that the page cannot hold
 * @returns {Mask}
 * @throws {MaskError} one sentence: what is wrong, where, and the valid range
 */
export function parseSpec(spec, shape, stored = new Map()) {
  if (spec.length > MAX_LENGTH) {
    const [length, limit] = [spec.length, MAX_LENGTH].map((number) => number.toLocaleString("en"));
    throw new MaskError(`the spec has ${length} characters; the limit is ${limit}`);
  }
  const text = spec.replace(SPACES, "");
  if (!text) throw new MaskError("the spec is empty; 'none' keeps every head");
  if (text.startsWith("@")) return storedMask(text.slice(1), stored);
  if (text.split(";").some((part) => GENERATOR.test(part))) {
    throw new MaskError("decoder: and cross: name heads of a query generator, which act on generated queries alone (condense with the method generate)");
  }
  if (text === "none") return allOn(shape);
  const items = text.split(",").map((part, i, all) => ({ text: part.replace(SPACES, ""), number: i + 1, isOnly: all.length === 1 }));
  const isSkip = (/** @type {Item} */ item) => item.text.startsWith("skip:");
  const skipped = new Set(items.filter(isSkip).flatMap((item) => skippedBy(item, shape)));
  const others = items.filter((item) => !isSkip(item));
  const off = others.length ? headsOff(others, shape) : [];
  return withoutLayers(withWeight(allOn(shape), off, 0, shape), range(shape.layers).filter((layer) => skipped.has(layer)), shape);
}

/** @param {string} name @param {Map<string, Mask | null>} stored */
function storedMask(name, stored) {
  const mask = stored.get(name);
  if (mask) return mask;
  if (mask === null) {
    throw new MaskError(`the grid cannot show ${shown(`@${name}`)}, because it switches units off or holds fractions; compare a variant that has it`);
  }
  const names = [...stored.keys()].sort().slice(0, 20).join(", ") || "none";
  throw new MaskError(`no mask is stored as ${shown(name)}; this model's stored masks: ${names}`);
}

/** @param {Item} item `skip:a`, `skip:a-b` or `skip:*` @param {Shape} shape @returns {number[]} layers */
function skippedBy(item, shape) {
  const match = SKIP.exec(item.text);
  if (match) return span(match[1], "layer", shape, where(item));
  throw new MaskError(`${shown(item.text)} is not skip:layers (such as skip:3 or skip:6-11); this model has ${validRange("layer", shape)}`);
}

/** @param {Item[]} items those that skip no layers, at least one @param {Shape} shape @returns {number[]} indices */
function headsOff([first, ...others], shape) {
  if (first.text.startsWith("keep:")) {
    const kept = new Set(listed([withText(first, first.text.slice(5)), ...others], shape));
    return everyHead(shape).filter((index) => !kept.has(index));
  }
  if (first.text.startsWith("random:")) return drawn(first, others, shape);
  return listed([first, ...others], shape);
}

/** @param {Item} item @param {string} text @returns {Item} the item with another text */
function withText(item, text) {
  return { ...item, text: text.replace(SPACES, "") };
}

/** @param {Item} item @returns {string} how an error points to it */
function where({ text, number, isOnly }) {
  return isOnly ? "" : ` (item ${number}, ${shown(text)})`;
}

/** @param {Shape} shape */
function everyHead({ layers, heads }) {
  return range(layers * heads);
}

/** @param {Item[]} items such as `2.3`, `4.0-5` and `7.*` @param {Shape} shape @returns {number[]} indices */
function listed(items, shape) {
  return items.flatMap((item) => {
    const match = ITEM.exec(item.text);
    if (!match) throw new MaskError(notListed(item, shape));
    const layers = span(match[1], "layer", shape, where(item));
    const heads = span(match[2], "head", shape, where(item));
    return layers.flatMap((layer) => heads.map((head) => layer * shape.heads + head));
  });
}

/** @param {Item} item one that is not layer.head @param {Shape} shape @returns {string} what is wrong with it */
function notListed({ text, number }, shape) {
  const [kind, rest] = text.split(/:(.*)/s);
  if (rest !== undefined && Object.hasOwn(NAMED, kind)) return `${shown(text)} only names ${NAMED[kind]}`;
  const wrong = text ? shown(text) : `item ${number}, which is empty,`;
  const valid = `${validRange("layer", shape)} and ${validRange("head", shape)}`;
  return `${wrong} is not layer.head (such as 2.3, 6-11.* or *.0); this model has ${valid}`;
}

/**
 * @param {string} text `*`, `a` or `a-b` @param {"layer" | "head"} axis @param {Shape} shape
 * @param {string} place how an error points to it
 */
function span(text, axis, shape, place) {
  const size = shape[`${axis}s`];
  if (text === "*") return range(size);
  const [first, last = first] = text.split("-");
  const [start, stop] = [first, last].map((digits) => {
    const number = Number(digits);
    if (number < size) return number;
    throw new MaskError(`${axis} ${shorter(digits)} does not exist; this model has ${validRange(axis, shape)}${place}`);
  });
  if (start <= stop) return range(stop - start + 1).map((i) => start + i);
  throw new MaskError(`the ${axis} range ${start}-${stop} runs backwards; write ${stop}-${start}${place}`);
}

/** @param {"layer" | "head"} axis @param {Shape} shape */
function validRange(axis, shape) {
  const size = shape[`${axis}s`];
  return size > 1 ? `${axis}s 0 to ${size - 1}` : `only ${axis} 0`;
}

/**
 * @param {Item} first `random:fraction@seed` or `random:fraction@seed/list` @param {Item[]} others the items that follow
 * @param {Shape} shape @returns {number[]} indices
 */
function drawn(first, others, shape) {
  const match = RANDOM.exec(first.text);
  if (!match) throw new MaskError(`${shown(first.text)} has no seed; write random:fraction@seed (random:0.2@7)`);
  const [, fraction, seed, list] = match;
  if (!DECIMAL.test(fraction) || exceedsOne(fraction)) {
    throw new MaskError(`the fraction ${shown(fraction)} of 'random' is not a decimal from 0 to 1 (0.2)`);
  }
  if (!/^[0-9]+$/.test(seed)) {
    throw new MaskError(`the seed ${shown(seed)} of 'random' is not a decimal integer from 0 up (7)`);
  }
  if (list === undefined && others.length) {
    throw new MaskError(`${shown(others[0].text)} follows 'random', which takes a list of heads only after a slash (random:0.2@7/0-5.*)`);
  }
  const candidates = list === undefined
    ? everyHead(shape)
    : [...new Set(listed([withText(first, list), ...others], shape))];
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
  return [...text].length <= 40 ? text : `${beginning(text, 39)}…`;
}
