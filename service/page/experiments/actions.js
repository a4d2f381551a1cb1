/** Ramp, stop and ship, for those who hold an admin key. */

import { useState } from "../vendor/hooks.js";
import { asProblem, call } from "../lib/api.js";
import { percent } from "../lib/format.js";
import { html } from "../lib/html.js";
import { current, update } from "../lib/store.js";

/** @typedef {import("./types.js").Experiment} Experiment */
/** @typedef {import("../lib/types.js").Problem} Problem */
/** @typedef {{verb: string, body: object, question: string, text: string}} Asked An action that waits for a yes. */

/** @param {{one: Experiment, path: string, done: () => void}} props */
export function Actions({ one, path, done }) {
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [said, setSaid] = useState("");
  const [asked, setAsked] = useState(/** @type {Asked | null} */ (null));
  const [back, setBack] = useState(/** @type {string[]} */ ([]));
  const act = async (/** @type {string} */ verb, /** @type {object} */ body, /** @type {string} */ text) => {
    setAsked(null);
    setSaid("");
    try {
      await call(`${path}/${verb}`, { body: { ...body, reason } });
      setProblem(null);
      setReason("");
      setBack([]);
      setSaid(text);
      done();
    } catch (error) {
      const found = asProblem(error);
      setProblem(found);
      if (found.status === 403) update({ key: { ...current().key, asking: true, wrong: false, admin: true } });
    }
  };
  const ask = (/** @type {string} */ verb, /** @type {object} */ body, /** @type {string} */ question, /** @type {string} */ text) =>
    setAsked({ verb, body, question, text });
  return html`
    <section class="actions">
      <h2>Change it</h2>
      <p class="soft">These need an API key with the admin role. Every action is in the log.</p>
      <div class="field reason"><label for="reason">Reason, for the log</label>
        <input id="reason" maxlength="500" value=${reason}
          onInput=${(/** @type {Event} */ event) => setReason(/** @type {HTMLInputElement} */ (event.target).value)} /></div>
      <${Ramp} one=${one} ask=${ask} back=${back} setBack=${setBack}
        wrong=${problem?.param === "traffic" ? problem.message : ""} />
      <${Ship} one=${one} ask=${ask} />
      <button class="danger" onClick=${() => ask("stop", {}, `Stop ${one.name}? Everybody gets the default.`, "Stopped.")}>Stop</button>
      ${asked
        ? html`<div class="confirm" role="alertdialog" aria-label="Confirm"><span>${asked.question}</span>
            <button class="strong" onClick=${() => act(asked.verb, asked.body, asked.text)}>Yes</button> <button onClick=${() => setAsked(null)}>No</button></div>`
        : null}
      <p class="wrong" role="alert">${problem && problem.param !== "traffic" ? problem.message : ""}</p>
      <p role="status">${said}</p>
    </section>`;
}

/** @typedef {(verb: string, body: object, question: string, text: string) => void} Ask */

/**
 * @param {{one: Experiment, ask: Ask, back: string[], setBack: (arms: string[]) => void, wrong: string}} props
 * back: the arms whose boxes are ticked
 */
function Ramp({ one, ask, back, setBack, wrong }) {
  const [traffic, setTraffic] = useState(String(Math.round(1000 * one.traffic) / 10));
  const share = Number(traffic) / 100;
  const reinstate = back.filter((arm) => one.rolled_back.includes(arm)); // another admin may have been faster
  const flip = (/** @type {string} */ arm) =>
    setBack(back.includes(arm) ? back.filter((other) => other !== arm) : [...back, arm]);
  return html`
    <div class="action">
      <label>Traffic, % of each arm's units <input type="number" min="0" max="100" step="0.1" value=${traffic}
        aria-invalid=${wrong ? "true" : null}
        onInput=${(/** @type {Event} */ event) => setTraffic(/** @type {HTMLInputElement} */ (event.target).value)} /></label>
      ${one.rolled_back.map((arm) => html`
        <label><input type="checkbox" checked=${back.includes(arm)} onChange=${() => flip(arm)} /> take ${arm} in again</label>`)}
      <button onClick=${() => ask("ramp", { traffic: share, reinstate },
        `Expose ${percent(share, 1)} of each arm's units${reinstate.length ? ` and take ${reinstate.join(", ")} in again` : ""}?`, "Ramped.")}>Ramp</button>
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
      <button onClick=${() => ask("ship", { arm }, `Ship ${arm}? Everybody but the holdout gets its variant.`, "Shipped.")}>Ship</button>
    </div>`;
}
