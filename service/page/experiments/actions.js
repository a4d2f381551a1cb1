/** Ramp, stop and ship, for those who hold an admin key. */

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { asProblem, call, needsKey } from "../lib/api.js";
import { exact, percentage } from "../lib/format.js";
import { html } from "../lib/html.js";
import { current, update } from "../lib/store.js";

/** @typedef {import("../lib/types.js").Experiment} Experiment */
/** @typedef {import("../lib/types.js").Problem} Problem */
/** @typedef {{by: HTMLElement, verb: string, body: object, question: string, text: string}} Asked An action that waits for a yes, and its button. */
/**
 * @typedef {object} Edits What a person changed before a ramp.
 * @property {string | null} traffic in per cent; null: it stays what it is, or is what the service chooses
 * @property {string[]} back the arms whose boxes are ticked
 */

/** @type {Edits} */
const NONE = { traffic: null, back: [] };

/** @param {{one: Experiment, path: string, done: () => void}} props */
export function Actions({ one, path, done }) {
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [said, setSaid] = useState("");
  const [asked, setAsked] = useState(/** @type {Asked | null} */ (null));
  const [edits, edit] = useState(NONE);
  const no = useRef(/** @type {HTMLButtonElement | null} */ (null));
  useEffect(() => no.current?.focus(), [asked]);
  const close = (/** @type {Asked} */ { by }) => {
    setAsked(null);
    by.focus(); // now, so that the key dialog, which may come next, gives the focus back to it
  };
  const act = async (/** @type {Asked} */ action) => {
    const { verb, body, text } = action;
    close(action);
    setSaid("");
    try {
      await call(`${path}/${verb}`, { body: { ...body, reason } });
      setProblem(null);
      setReason("");
      edit(NONE);
      setSaid(text);
      done();
    } catch (error) {
      const found = asProblem(error);
      setProblem(found);
      // If the service has no keys, no key would help. A stored one may be left from before a restart.
      if (found.status === 403 && (await needsKey())) update({ key: { ...current().key, asking: true, wrong: false, admin: true } });
    }
  };
  /** @type {Ask} */
  const ask = (event, verb, body, question, text) =>
    setAsked({ by: /** @type {HTMLElement} */ (event.currentTarget), verb, body, question, text });
  return html`
    <section class="actions">
      <h2>Change it</h2>
      <p class="soft">These need an API key with the admin role. Every action is in the log.</p>
      <div class="field reason"><label for="reason">Reason, for the log</label>
        <input id="reason" maxlength="500" value=${reason}
          onInput=${(/** @type {Event} */ event) => setReason(/** @type {HTMLInputElement} */ (event.target).value)} /></div>
      <${Ramp} one=${one} ask=${ask} edits=${edits} edit=${edit}
        wrong=${problem?.param === "traffic" ? problem.message : ""} />
      <${Ship} one=${one} ask=${ask} />
      <div class="action"><button class="danger" onClick=${(/** @type {Event} */ event) =>
        ask(event, "stop", {}, `Stop ${one.name}? Everybody gets the default.`, "Stopped.")}>Stop</button>
        <span class="soft">Everybody gets the default again. The experiment ends.</span></div>
      ${asked
        ? html`<div class="confirm" role="alertdialog" aria-label="Confirm" aria-describedby="question"><span id="question">${asked.question}</span>
            <button class="strong" onClick=${() => act(asked)}>Yes</button> <button ref=${no} onClick=${() => close(asked)}>No</button></div>`
        : null}
      <p class="wrong" role="alert">${problem && problem.param !== "traffic" ? problem.message : ""}</p>
      <p role="status">${said}</p>
    </section>`;
}

/** @typedef {(event: Event, verb: string, body: object, question: string, text: string) => void} Ask */

/** @param {{one: Experiment, ask: Ask, edits: Edits, edit: (edits: Edits) => void, wrong: string}} props */
function Ramp({ one, ask, edits, edit, wrong }) {
  const { traffic, back } = edits;
  const standing = one.status === "running" ? one.traffic : null; // 0 if it does not run: no share to go on with
  const reinstate = back.filter((arm) => one.rolled_back.includes(arm)); // another admin may have been faster
  // Any traffic, also the standing one, ends the config's schedule. A reinstatement needs none.
  const share = traffic ? Number(traffic) / 100 : traffic === "" || reinstate.length ? null : standing;
  const stays = share === null && standing !== null;
  const unnamed = reinstate.length ? "the share of each arm's units at which it last ran" : "the share of each arm's units that comes next in the config's ramp";
  const exposed = share === null ? unnamed : `${exact(share)} of each arm's units`;
  const arms = reinstate.join(", ");
  const again = arms && ` and take ${arms} in again`;
  const question = stays ? `Take ${arms} in again? The traffic and its schedule stay as they are.` : `Expose ${exposed}${again}?`;
  const flip = (/** @type {string} */ arm) =>
    edit({ ...edits, back: back.includes(arm) ? back.filter((other) => other !== arm) : [...back, arm] });
  const type = (/** @type {Event} */ event) => edit({ ...edits, traffic: /** @type {HTMLInputElement} */ (event.target).value });
  return html`
    <div class="action">
      <label>Traffic, % of each arm's units <input type="number" min="0" max="100" step="0.01"
        value=${traffic ?? (standing === null ? "" : percentage(standing))}
        placeholder=${reinstate.length ? "last share" : standing === null ? "next step" : null} aria-invalid=${wrong ? "true" : null} onInput=${type} /></label>
      ${one.rolled_back.map((arm) => html`
        <label><input type="checkbox" checked=${back.includes(arm)} onChange=${() => flip(arm)} /> take ${arm} in again</label>`)}
      <button disabled=${stays && !arms} onClick=${(/** @type {Event} */ event) =>
        ask(event, "ramp", { traffic: share, reinstate }, question, stays ? "Taken in again." : "Ramped.")}>Ramp</button>
      <span class="soft">More or fewer units take part. Nobody changes arms.</span>
      <p class="wrong" role="alert">${wrong}</p>
    </div>`;
}

/** @param {{one: Experiment, ask: Ask}} props */
function Ship({ one, ask }) {
  const [arm, setArm] = useState(one.arms.find((candidate) => !candidate.control)?.name ?? one.arms[0].name);
  return html`
    <div class="action">
      <label>Arm <select value=${arm} onChange=${(/** @type {Event} */ event) => setArm(/** @type {HTMLSelectElement} */ (event.target).value)}>
        ${one.arms.map((candidate) => html`<option value=${candidate.name}>${candidate.name}</option>`)}</select></label>
      <button onClick=${(/** @type {Event} */ event) => ask(event, "ship", { arm }, `Ship ${arm}? Everybody but the holdout gets its variant.`, "Shipped.")}>Ship</button>
      <span class="soft">Everybody but the holdout gets this arm's variant. The experiment ends.</span>
    </div>`;
}
