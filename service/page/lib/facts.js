/** Asks the service what it serves: once, and again when its live config or its model changes. */

import { asProblem, call, FACTS, onFactsVersion } from "./api.js";
import { nameOf } from "./explain.js";
import { MaskError, parseSpec } from "./mask_spec.js";
import { current, update } from "./store.js";

/** @typedef {import("./types.js").Facts} Facts */
/** @typedef {import("./mask.js").Mask} Mask */

const MAX_TRIES = 4; // replicas take an edit over one after the other, and another one may answer
const PAUSE_MS = 2000;

/** @type {AbortController | null} */
let flight = null;
let answeredVersion = ""; // in the last answer
let isCatchingUp = false;

/** Begins to load the facts anew when an answer says that they are others by now. */
export function followFacts() {
  onFactsVersion((version) => {
    answeredVersion = version;
    if (isBehind() && !isCatchingUp) catchUp();
  });
}

/** @returns {boolean} whether the last answer named other facts */
function isBehind() {
  const { facts } = current();
  return facts !== null && facts.version !== answeredVersion;
}

async function catchUp() {
  isCatchingUp = true;
  for (let tries = 0; tries < MAX_TRIES && isBehind(); tries++) {
    await new Promise((resolve) => setTimeout(resolve, tries * PAUSE_MS));
    await checkFacts();
  }
  isCatchingUp = false;
}

/** Loads the facts anew unless they are still the same. */
async function checkFacts() {
  if (!flight) await load(current().facts?.version);
}

/** Loads what is served into the store; until it succeeds the store says why not. A newer call ends an older one. */
export function loadFacts() {
  return load();
}

/** @param {string} [known] nothing changes if this is still their version */
async function load(known) {
  flight?.abort();
  const controller = new AbortController();
  flight = controller;
  update({ factsProblem: null });
  try {
    const { version, models, variants, masks, heads } = await call(FACTS, { signal: controller.signal });
    const facts = {
      version,
      models: models.models,
      model: models.models[0],
      variants: variants.variants,
      masks: masks.masks,
      study: heads.study,
    };
    if (known === undefined) update({ facts, key: { asking: false, wrong: false, admin: false, needed: false } });
    else if (known !== facts.version) update({ facts });
  } catch (error) {
    if (!controller.signal.aborted) update({ factsProblem: asProblem(error) });
  } finally {
    if (flight === controller) flight = null;
  }
}

/**
 * @param {Facts} facts
 * @returns {Map<string, Mask | null>} the stored masks by name; null: one that the page cannot hold
 */
export function storedMasks(facts) {
  return new Map(facts.masks.map(({ name, head_mask }) => [name, maskOf(head_mask.spec, facts.model)]));
}

/** @param {import("./types.js").Variant | undefined} variant @returns {boolean} whether it is the titles' own order: no network, so no heads */
export function isOrder(variant) {
  return variant?.head_mask.heads === 0;
}

/** @param {import("./types.js").Variant} variant @returns {boolean} whether it is the service's own model alone */
export function isOwn(variant) {
  return variant.model_index === 0 && !variant.cascade && !isOrder(variant);
}

/** @param {Facts | null} facts @returns {{layer: number, head: number}} the head that matches terms most: it shows what a head does; 0.0 without a study */
export function exampleHead(facts) {
  if (!facts?.study) return { layer: 0, head: 0 };
  const matched = facts.study.heads.map(({ roles }) => roles.term_match ?? 0);
  const index = matched.indexOf(Math.max(...matched));
  return { layer: Math.floor(index / facts.model.heads), head: index % facts.model.heads };
}

/**
 * @param {import("./types.js").Study} study
 * @returns {{metric: string, name: string}[]} what heads are judged by, the metric that shades them first; an older study
 *   names none, and has them in this order
 */
export function metricsOf(study) {
  if (study.metrics) return Object.entries(study.metrics).map(([metric, name]) => ({ metric, name }));
  return Object.keys(study.heads[0].delta).map((metric) => ({ metric, name: nameOf(metric) }));
}

/**
 * @param {import("./types.js").HeadFinding | null} finding @param {import("./types.js").Study | null | undefined} study
 * @returns {number | null} how the first metric changes with the head alone off; null: not known
 */
export function mainChange(finding, study) {
  return study && finding ? finding.delta[metricsOf(study)[0].metric] : null;
}

/** @param {Facts} facts @returns {number} the layer whose heads are worth most, each alone; 0 without a study */
export function exampleLayer({ model, study }) {
  const worth = Array.from({ length: model.layers }, () => 0);
  for (const head of study?.heads ?? []) worth[head.layer] -= mainChange(head, study) ?? 0;
  return worth.indexOf(Math.max(...worth));
}

/** @param {Facts} facts @returns {import("./types.js").Variant | undefined} the variant that a request's mask is laid on */
export function defaultVariant(facts) {
  const networks = facts.variants.filter((one) => !isOrder(one));
  return networks.find((one) => one.default) ?? networks[0];
}

/**
 * @param {Facts} facts @param {import("./types.js").Variant | undefined} variant undefined: it left the config
 * @returns {import("./types.js").Model} the checkpoint that a variant runs; of a cascade, its last stage's
 */
export function modelOf(facts, variant) {
  return facts.models[variant?.model_index ?? 0];
}

/** @param {Facts} facts @param {import("./types.js").AnswerColumn} column @returns {import("./types.js").Model} the checkpoint that gave its scores */
export function scoringModel(facts, column) {
  return modelOf(facts, facts.variants.find(({ name }) => name === column.variant));
}

/** @param {import("./types.js").Model} model @returns {string} equal for models whose scores mean the same: these grades, or one score of this kind */
export function kindOfScore({ grades, score_activation }) {
  return JSON.stringify(grades ?? score_activation);
}

/**
 * @param {Facts} facts @param {import("./types.js").Variant | undefined} variant
 * @returns {import("./types.js").Study | null} the study of the checkpoint that a variant runs, if it is the service's own
 */
export function studyOf(facts, variant) {
  return modelOf(facts, variant) === facts.model ? facts.study : null;
}

/** @param {Facts} facts @returns {boolean} whether masks are laid on the intact model */
export function isBare(facts) {
  const variant = defaultVariant(facts);
  return !variant || (isOwn(variant) && variant.head_mask.spec === "none");
}

/**
 * @param {Facts} facts @param {import("./types.js").Variant | undefined} variant
 * @returns {Mask | null} the heads and layers that a variant has off, to be drawn; its units are not. null: not known
 */
export function drawnOf(facts, variant) {
  if (isOrder(variant)) return { weights: new Float32Array(facts.model.layers * facts.model.heads), skipped: [] };
  if (!variant || !isOwn(variant)) return null;
  const items = variant.head_mask.spec.split(",").filter((item) => !item.startsWith("units:"));
  return maskOf(items.join() || "none", facts.model);
}

/**
 * @param {Facts} facts
 * @returns {Mask | null} the default variant's mask, which the service multiplies onto a request's; null if it is not
 *   known, or if the default is not the service's own model alone
 */
export function defaultMask(facts) {
  const variant = defaultVariant(facts);
  return variant && isOwn(variant) ? maskOf(variant.head_mask.spec, facts.model) : null;
}

/**
 * @param {string} spec a canonical one @param {import("./mask.js").Shape} shape
 * @returns {Mask | null} null for one with fractions or units, of which the service tells only the id
 */
export function maskOf(spec, shape) {
  try {
    return parseSpec(spec, shape);
  } catch (error) {
    if (error instanceof MaskError) return null;
    throw error;
  }
}
