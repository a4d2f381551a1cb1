/** The form that starts an experiment without the config. */

import { useState } from "../vendor/hooks.js";
import { asProblem, call } from "../lib/api.js";
import { exact } from "../lib/format.js";
import { html } from "../lib/html.js";
import { update } from "../lib/store.js";
import { NeedsKeys, askForAdmin, useKeyless } from "./admin.js";

/** @typedef {import("../lib/types.js").Experiment} Experiment */
/** @typedef {import("../lib/types.js").Problem} Problem */
/** @typedef {import("../lib/types.js").Variant} Variant */

/**
 * @typedef {object} Plan What the form holds; shares in per cent.
 * @property {string} name
 * @property {string} control
 * @property {string} treatment
 * @property {string} kind
 * @property {string} traffic
 * @property {string} metric
 * @property {string} margin
 * @property {string} planned
 */

const SLOTS = 10_000;
const KINDS = {
  ab: "A/B test: each user gets one of the two",
  interleave: "Interleaving: each user gets one list from both",
};
const MARGINS = /** @type {Record<string, string>} */ ({
  ab: "Margin: the loss that is acceptable, %",
  interleave: "Margin: the preference for control that is acceptable, %",
});
const HINTS = /** @type {Record<string, string>} */ ({
  ab: "Shows any metric. It needs many users: headroom experiment plan says how many.",
  interleave: "Shows whose titles are clicked more. It needs far fewer users: headroom experiment plan --interleave says how many.",
});
const PLANNED = /** @type {Record<string, string>} */ ({
  ab: "Planned units",
  interleave: "Planned units that click a title of one arm",
});

/**
 * @param {{variants: Variant[], listed: Experiment[], filled: Partial<Plan>, started: (name: string) => void, cancel: () => void}} props
 *   filled: what a person has filled in; started: called with the new experiment's name
 */
export function Start({ variants, listed, filled, started, cancel }) {
  const plan = { ...proposal(variants), ...standing(filled, variants) };
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [busy, setBusy] = useState(false);
  const keyless = useKeyless();
  const slots = largestFree(listed);
  const set = (/** @type {keyof Plan} */ field) => (/** @type {Event} */ event) =>
    update({ start: { ...filled, [field]: /** @type {HTMLInputElement} */ (event.target).value } });
  const start = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!slots) return;
    setBusy(true);
    setProblem(null);
    try {
      await call("v1/experiments", { body: entry(plan, slots) });
      started(plan.name);
    } catch (error) {
      const found = asProblem(error);
      setProblem(found);
      setBusy(false);
      await askForAdmin(found);
    }
  };
  const field = (/** @type {keyof Plan} */ name, /** @type {string} */ label, /** @type {object} */ more) => html`
    <label class="field">${label} <input required name=${name} value=${plan[name]} onInput=${set(name)} ...${more} /></label>`;
  const choice = (/** @type {keyof Plan} */ name, /** @type {string} */ label, /** @type {[string, string][]} */ options) => html`
    <label class="field">${label} <select name=${name} value=${plan[name]} onChange=${set(name)}>
      ${options.map(([value, text]) => html`<option value=${value} selected=${value === plan[name]}>${text}</option>`)}</select></label>`;
  const names = variants.map(({ name }) => /** @type {[string, string]} */ ([name, name]));
  return html`
    <form class="start" aria-labelledby="start-title" onSubmit=${start}>
      <h1 id="start-title">Start an experiment</h1>
      <p class="soft">It begins at once, on all replicas, and lasts over restarts. This needs an API key with the admin role.</p>
      ${keyless ? html`<${NeedsKeys} />` : null}
      ${field("name", "Name", { pattern: "[a-z0-9_\\-]{1,64}", maxlength: 64, title: "a to z, 0 to 9, _ and -", autocomplete: "off" })}
      <div class="two">${choice("control", "Control: what users get today", names)} ${choice("treatment", "Treatment: what you try", names)}</div>
      ${choice("kind", "Kind", Object.entries(KINDS))}
      <p class="soft">${HINTS[plan.kind]}</p>
      <div class="two">
        ${field("traffic", "Traffic, % of the users", { type: "number", min: "0", max: "100", step: "0.01" })}
        ${field("metric", "Metric: the outcome that counts", { maxlength: 64, autocomplete: "off" })}
      </div>
      <div class="two">
        ${field("margin", MARGINS[plan.kind], { type: "number", min: "0.01", max: "99.99", step: "0.01" })}
        ${field("planned", PLANNED[plan.kind], { type: "number", min: "1", step: "1" })}
      </div>
      ${slots ? html`<p class="soft">${reach(slots)}</p>` : html`<p class="wrong" role="alert">Other experiments have all users. Stop one first.</p>`}
      <p class="wrong" role="alert">${problem?.message ?? ""}</p>
      <div class="presets"><button class="strong" disabled=${busy || keyless || !slots}>Start ${plan.name}</button>
        <button type="button" onClick=${cancel}>Cancel</button></div>
    </form>`;
}

/** @param {Partial<Plan>} filled @param {Variant[]} variants @returns {Partial<Plan>} what was filled in, without variants that are gone */
function standing(filled, variants) {
  const isThere = (/** @type {string} */ value) => variants.some(({ name }) => name === value);
  const entries = Object.entries(filled).filter(([field, value]) => !["control", "treatment"].includes(field) || isThere(value));
  return Object.fromEntries(entries);
}

/** @param {Variant[]} variants @returns {Plan} what the form opens with */
function proposal(variants) {
  const control = variants.find((one) => one.default)?.name ?? "";
  const treatment = variants.find((one) => !one.default)?.name ?? control;
  const name = `${treatment}-1`.slice(0, 64);
  return { name, control, treatment, kind: "ab", traffic: "10", metric: "click", margin: "2", planned: "10000" };
}

/** @param {Plan} plan @param {[number, number]} slots @returns {object} the experiment, as the config would declare it */
function entry(plan, slots) {
  const isList = plan.kind === "interleave";
  const margin = Number(plan.margin) / 100;
  return {
    name: plan.name,
    ...(isList ? { kind: plan.kind } : {}),
    salt: salt(),
    arms: [
      { name: "control", variant: plan.control },
      { name: plan.treatment === "control" ? "treatment" : plan.treatment, variant: plan.treatment },
    ],
    traffic: Number(plan.traffic) / 100,
    slots,
    planned_units: Number(plan.planned),
    metrics: [{ name: plan.metric, margin, ...(isList ? {} : { kind: "proportion" }) }],
  };
}

/** @returns {string} one that no other experiment has */
function salt() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {Experiment[]} listed @returns {[number, number] | null} the largest range of slots that no experiment has */
export function largestFree(listed) {
  const taken = listed
    .filter(({ status }) => !["stopped", "shipped", "rolled_back"].includes(status))
    .map(({ slots }) => slots)
    .sort((one, other) => one[0] - other[0]);
  /** @type {[number, number]} */
  let largest = [0, 0];
  let start = 0;
  for (const [from, to] of [...taken, [SLOTS, SLOTS]]) {
    if (from - start > largest[1] - largest[0]) largest = [start, from];
    start = Math.max(start, to);
  }
  return largest[1] > largest[0] ? largest : null;
}

/** @param {[number, number]} slots */
function reach([start, end]) {
  return end - start === SLOTS
    ? "No other experiment runs, so it can reach all users."
    : `Other experiments keep their users, so it can reach ${exact((end - start) / SLOTS)} of all users.`;
}
