/** Ramp, stop and ship, for those who hold an admin key. */

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { asProblem, call, needsKey } from "../lib/api.js";
import { exact, percentage } from "../lib/format.js";
import { html } from "../lib/html.js";
import { current, update } from "../lib/store.js";

/** @typedef {import("../lib/types.js").Experiment} Experiment */
/** @typedef {import("../lib/types.js").Problem} Problem */
/** @typedef {string | null} Traffic What a person typed, in per cent; null: the standing traffic. */
/** @typedef {{by: HTMLElement, verb: string, body: object, question: string, text: string}} Asked An action that waits for a yes, and its button. */

/** @param {{one: Experiment, path: string, done: () => void}} props */
export function Actions({ one, path, done }) {
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [said, setSaid] = useState("");
  const [asked, setAsked] = useState(/** @type {Asked | null} */ (null));
  const [traffic, setTraffic] = useState(/** @type {Traffic} */ (null));
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
      setTraffic(null);
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
      <${Ramp} one=${one} ask=${ask} traffic=${traffic} set=${setTraffic}
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

/** @param {{one: Experiment, ask: Ask, traffic: Traffic, set: (traffic: Traffic) => void, wrong: string}} props */
function Ramp({ one, ask, traffic, set, wrong }) {
  const standing = one.status === "running" ? one.traffic : null;
  const share = traffic ? Number(traffic) / 100 : standing ?? 0;
  return html`
    <div class="action">
      <label>Traffic, % of each arm's units <input type="number" min="0" max="100" step="0.01"
        value=${traffic ?? (standing === null ? "" : percentage(standing))} aria-invalid=${wrong ? "true" : null}
        onInput=${(/** @type {Event} */ event) => set(/** @type {HTMLInputElement} */ (event.target).value)} /></label>
      <button onClick=${(/** @type {Event} */ event) =>
        ask(event, "ramp", { traffic: share }, `Expose ${exact(share)} of each arm's units?`, "Ramped.")}>Ramp</button>
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
      <button onClick=${(/** @type {Event} */ event) => ask(event, "ship", { arm }, `Ship ${arm}? Everybody gets its variant.`, "Shipped.")}>Ship</button>
      <span class="soft">Everybody gets this arm's variant. The experiment ends.</span>
    </div>`;
}
