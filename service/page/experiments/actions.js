/** Ramp, stop, ship and roll back, for those who hold an admin key. */

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { asProblem, call } from "../lib/api.js";
import { exact, percentage } from "../lib/format.js";
import { html } from "../lib/html.js";
import { askForAdmin } from "./admin.js";

/** @typedef {import("../lib/types.js").Experiment} Experiment */
/** @typedef {import("../lib/types.js").Problem} Problem */
/** @typedef {string | null} Traffic What a person typed, in per cent; null: the standing traffic. */

/**
 * @typedef {object} Act What a person asks for. It waits for a second press.
 * @property {string} verb
 * @property {object} body
 * @property {string} name what it does, on the button that does it
 * @property {string} question
 * @property {string} done
 */

/** @typedef {(event: Event, act: Act) => void} Ask */

/** @param {{one: Experiment, path: string, done: () => void}} props */
export function Actions({ one, path, done }) {
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [status, setStatus] = useState("");
  const [asked, setAsked] = useState(/** @type {{act: Act, by: HTMLElement} | null} */ (null));
  const [traffic, setTraffic] = useState(/** @type {Traffic} */ (null));
  const cancel = useRef(/** @type {HTMLButtonElement | null} */ (null));
  useEffect(() => cancel.current?.focus(), [asked]);
  const close = () => {
    setAsked(null);
    asked?.by.focus(); // now, so that the key dialog, which may come next, gives the focus back to it
  };
  const run = async (/** @type {Act} */ act) => {
    close();
    setStatus("");
    try {
      await call(`${path}/${act.verb}`, { body: { ...act.body, reason } });
      setProblem(null);
      setReason("");
      setTraffic(null);
      setStatus(act.done);
      done();
    } catch (error) {
      const found = asProblem(error);
      setProblem(found);
      await askForAdmin(found);
    }
  };
  /** @type {Ask} */
  const ask = (event, act) => setAsked({ act, by: /** @type {HTMLElement} */ (event.currentTarget) });
  return html`
    <${Frame}>
      <p class="soft">These need an API key with the admin role. Every action is in the log.</p>
      <div class="field reason"><label for="reason">Reason, for the log</label>
        <input id="reason" maxlength="500" value=${reason}
          onInput=${(/** @type {Event} */ event) => setReason(/** @type {HTMLInputElement} */ (event.target).value)} /></div>
      ${one.status === "running"
        ? html`<${Ramp} one=${one} ask=${ask} traffic=${traffic} set=${setTraffic}
              wrong=${problem?.param === "traffic" ? problem.message : ""} />
            <${Ship} one=${one} ask=${ask} />`
        : null}
      ${one.status === "stopped" ? html`<p class="soft">It is over. To go on, give a new experiment another name and salt.</p><${Ship} one=${one} ask=${ask} />` : null}
      ${one.shipped ? html`<${RollBack} one=${one} ask=${ask} />` : null}
      ${one.status === "stopped" ? null : html`<${Stop} one=${one} ask=${ask} />`}
      ${asked
        ? html`<div class="confirm" role="alertdialog" aria-label="Confirm" aria-describedby="question"><span id="question">${asked.act.question}</span>
            <button class="strong" onClick=${() => run(asked.act)}>${asked.act.name}</button>
            <button ref=${cancel} onClick=${close}>Cancel</button></div>`
        : null}
      <p class="wrong" role="alert">${problem && problem.param !== "traffic" ? problem.message : ""}</p>
      <p role="status">${status}</p>
    </${Frame}>`;
}

/** @param {{children?: unknown}} props */
function Frame({ children }) {
  return html`<section class="actions"><h2>Change it</h2>${children}</section>`;
}

/** @param {{one: Experiment, ask: Ask, traffic: Traffic, set: (traffic: Traffic) => void, wrong: string}} props */
function Ramp({ one, ask, traffic, set, wrong }) {
  const share = traffic ? Number(traffic) / 100 : one.traffic;
  const units = one.kind === "interleave" ? "the units" : "each arm's units"; // of interleaved lists each unit sees both arms
  const act = {
    verb: "ramp",
    body: { traffic: share },
    name: `Ramp to ${exact(share)}`,
    question: `Expose ${exact(share)} of ${units}?`,
    done: "Ramped.",
  };
  return html`
    <div class="action">
      <label>Traffic, % of ${units} <input type="number" min="0" max="100" step="0.01"
        value=${traffic ?? percentage(one.traffic)} aria-invalid=${wrong ? "true" : null}
        onInput=${(/** @type {Event} */ event) => set(/** @type {HTMLInputElement} */ (event.target).value)} /></label>
      <button onClick=${(/** @type {Event} */ event) => ask(event, act)}>Ramp</button>
      <span class="soft">More or fewer units take part. Nobody changes arms.</span>
      <p class="wrong" role="alert">${wrong}</p>
    </div>`;
}

/** @param {{one: Experiment, ask: Ask}} props An arm that was rolled back cannot be shipped. */
function Ship({ one, ask }) {
  const arms = one.arms.filter(({ name }) => !one.rolled_back.includes(name));
  const [chosen, setChosen] = useState("");
  const { name: arm } = arms.find(({ name }) => name === chosen) ?? arms.find(({ control }) => !control) ?? arms[0];
  const act = { verb: "ship", body: { arm }, name: `Ship ${arm}`, question: `Ship ${arm}? Everybody gets its variant, and the experiment ends.`, done: "Shipped." };
  return html`
    <div class="action">
      <label>Arm <select value=${arm} onChange=${(/** @type {Event} */ event) => setChosen(/** @type {HTMLSelectElement} */ (event.target).value)}>
        ${arms.map(({ name }) => html`<option value=${name}>${name}</option>`)}</select></label>
      <button onClick=${(/** @type {Event} */ event) => ask(event, act)}>Ship</button>
      <span class="soft">Everybody gets this arm's variant. The experiment ends.</span>
    </div>`;
}

/** @param {{one: Experiment, ask: Ask}} props */
function RollBack({ one, ask }) {
  const act = {
    verb: "rollback",
    body: {},
    name: `Roll back ${one.shipped}`,
    question: `Roll back ${one.shipped}? Everybody gets the default again.`,
    done: "Rolled back.",
  };
  return html`
    <div class="action"><button onClick=${(/** @type {Event} */ event) => ask(event, act)}>Roll back</button>
      <span class="soft">Everybody gets the default again in place of ${one.shipped}. You can ship it again.</span></div>`;
}

/** @param {{one: Experiment, ask: Ask}} props */
function Stop({ one, ask }) {
  const act = {
    verb: "stop",
    body: {},
    name: `Stop ${one.name}`,
    question: `Stop ${one.name}? Everybody gets the default, and the experiment ends.`,
    done: "Stopped.",
  };
  return html`
    <div class="action"><button class="danger" onClick=${(/** @type {Event} */ event) => ask(event, act)}>Stop</button>
      <span class="soft">Everybody gets the default again${one.shipped ? ` in place of ${one.shipped}` : ""}. The experiment ends.</span></div>`;
}
