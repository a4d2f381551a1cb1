/**
 * The page's address holds its whole state, after the #, which browsers do not send to the service:
 *
 *     #playground?q=angle bracket&t=first title&t=second&mask=none&mask=2.3,7.*&active=1&base=0
 *
 * A mask is a spec, canonical if the page wrote it, with `;2.3=0.4` for each head of another weight, or `variant:NAME`.
 */

import { allOn, offSpec, tidy } from "./mask.js";
import { MaskError, parseSpec } from "./mask_spec.js";
import { column, MAX_COLUMNS } from "./columns.js";
import { beginning } from "./format.js";
import { storedMasks, exampleHead } from "./facts.js";
import { current, subscribe } from "./store.js";

/** @typedef {import("./types.js").State} State */
/** @typedef {import("./types.js").Column} Column */
/** @typedef {import("./types.js").Facts} Facts */
/** @typedef {import("./mask.js").Shape} Shape */

export const VIEWS = ["playground", "attention", "experiments", "live"];
const WRITE_MS = 250; // browsers refuse more than some 100 changes of the address in 10 seconds

/** @param {State} state @returns {string} the part of the address from the # on */
export function addressOf(state) {
  const parameters = new URLSearchParams();
  if (state.query) parameters.append("q", state.query);
  for (const title of state.titles) parameters.append("t", title);
  const shape = state.facts?.model;
  if (shape) for (const one of state.columns) parameters.append("mask", maskText(one, shape));
  if (state.active) parameters.set("active", `${state.active}`);
  if (state.baseline !== null) parameters.set("base", `${state.baseline}`);
  if (state.view === "attention") {
    const { title, layer, head, special, words, masked } = state.attention;
    parameters.set("pair", `${title}`);
    parameters.set("head", `${layer}.${head}`);
    const shown = [special ? "" : "plain", words ? "words" : "", masked ? "masked" : ""].filter(Boolean);
    if (shown.length) parameters.set("show", shown.join(","));
  }
  if (state.view === "experiments" && state.experiment) parameters.set("experiment", state.experiment);
  return `#${state.view}?${parameters}`;
}

/** @param {Column} one @param {Shape} shape */
function maskText({ mask, variant }, shape) {
  if (!mask) return `variant:${variant}`;
  const partly = [...mask.weights].flatMap((weight, i) =>
    weight > 0 && weight < 1 ? [`${Math.floor(i / shape.heads)}.${i % shape.heads}=${tidy(weight)}`] : [],
  );
  return [offSpec(mask, shape), ...partly].join(";");
}

/**
 * @param {string} hash what `addressOf` gives @param {Facts | null} facts null while they are not known yet
 * @returns {Partial<State>} what the address says, without what it does not say
 */
export function stateOf(hash, facts) {
  const [, view = "", rest = ""] = /^#?([a-z]*)\??(.*)$/s.exec(hash) ?? [];
  const parameters = new URLSearchParams(rest);
  /** @type {Partial<State>} */
  const found = { view: VIEWS.includes(view) ? view : VIEWS[0] };
  // An address with masks is whole: a text that it lacks was empty.
  const isWhole = parameters.has("mask");
  if (isWhole || parameters.has("q")) found.query = parameters.get("q") ?? "";
  if (isWhole || parameters.has("t")) found.titles = parameters.getAll("t");
  const head = /^(\d+)\.(\d+)$/.exec(parameters.get("head") ?? "");
  const show = parameters.get("show") ?? "";
  if (view === "attention") {
    const first = exampleHead(facts);
    found.attention = {
      title: indexOf(parameters.get("pair")) ?? 0,
      layer: Number(head?.[1] ?? first.layer),
      head: Number(head?.[2] ?? first.head),
      special: !show.includes("plain"),
      words: show.includes("words"),
      masked: show.includes("masked"),
    };
  }
  // Addresses of other views name none, and the one that was chosen stays so.
  if (view === "experiments" || parameters.has("experiment")) found.experiment = parameters.get("experiment");
  return facts ? { ...found, ...columnsOf(parameters, facts) } : found;
}

/**
 * @param {URLSearchParams} parameters @param {Facts} facts
 * @param {string} [about] what is said of a mask that cannot be read
 * @returns {Partial<State>}
 */
function columnsOf(parameters, facts, about = "The opened address holds a mask that this model cannot read") {
  const columns = parameters
    .getAll("mask")
    .slice(0, MAX_COLUMNS)
    .map((text) => (text.startsWith("variant:") ? column(null, null, text.slice(8)) : columnOf(text, facts, about)));
  if (!columns.length) return {};
  const last = columns.length - 1;
  return {
    columns,
    active: indexOf(parameters.get("active"), last) ?? 0,
    baseline: indexOf(parameters.get("base"), last),
  };
}

/**
 * @param {State} before @param {Facts} facts of a model of another shape
 * @returns {Partial<State>} the masks, each read again as if the address was opened now; no scores are shown any more
 */
export function reread(before, facts) {
  const [, parameters] = addressOf(before).split(/\?(.*)/s);
  const columns = columnsOf(new URLSearchParams(parameters), facts, "Another model runs now, which cannot read a mask");
  return { ...columns, selection: [], answer: null };
}

/** @param {string | null} text @param {number} [last] the largest index @returns {number | null} null: it is no index */
function indexOf(text, last = Infinity) {
  return /^\d+$/.test(text ?? "") ? Math.min(Number(text), last) : null;
}

/** @param {string} text @param {Facts} facts @param {string} about @returns {Column} one with every head if the text, as of another model's address, is unreadable */
function columnOf(text, facts, about) {
  try {
    return column(maskOf(text, facts));
  } catch (error) {
    if (error instanceof MaskError) return { ...column(allOn(facts.model)), unreadable: `${about}: ${error.message}` };
    throw error;
  }
}

/** @param {string} text @param {Facts} facts @returns {import("./mask.js").Mask} @throws {MaskError} */
function maskOf(text, facts) {
  const [spec, ...partly] = text.split(";");
  const mask = parseSpec(spec, facts.model, storedMasks(facts));
  for (const one of partly) {
    const [, head, weight] = /^(\d+\.\d+)=(0?\.\d+|0|1)$/.exec(one) ?? [];
    if (!head) throw new MaskError(`'${beginning(one, 40)}' is not layer.head=weight (such as 2.3=0.4)`);
    const [layer] = head.split(".").map(Number);
    const index = parseSpec(head, facts.model).weights.indexOf(0);
    if (!mask.skipped.includes(layer)) mask.weights[index] = Number(weight);
  }
  return mask;
}

/**
 * Writes the address whenever the state changes, and a page of history whenever the view does; Back and Forward
 * open the address that they lead to.
 * @param {(hash: string) => void} open changes the state to that of an address
 */
export function followAddress(open) {
  let isTravelling = false; // a new page of history would then delete those that Forward leads to
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let waiting;
  const write = (/** @type {State} */ state) => {
    waiting = undefined;
    history.replaceState(null, "", addressOf(state));
  };
  subscribe((state, before) => {
    if (!state.facts) return; // an address written now would lack its masks
    clearTimeout(waiting);
    if (state.view !== before.view && !isTravelling) {
      if (waiting !== undefined) write(before);
      history.pushState(null, "", addressOf(state));
    } else {
      waiting = setTimeout(() => write(current()), WRITE_MS);
    }
  });
  addEventListener("popstate", () => {
    if (location.hash === addressOf(current())) return;
    isTravelling = true;
    open(location.hash);
    isTravelling = false;
  });
}
