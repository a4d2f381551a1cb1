/** The experiments: the list, one of them in full, and the start of another. */

import { useState } from "../vendor/hooks.js";
import { call, text } from "../lib/api.js";
import { exact, when } from "../lib/format.js";
import { html } from "../lib/html.js";
import { usePolling } from "../lib/polling.js";
import { update } from "../lib/store.js";
import { Trouble } from "../lib/trouble.js";
import { Actions } from "./actions.js";
import { NeedsKeys, useKeyless } from "./admin.js";
import { Guardrails } from "./guardrails.js";
import { Report } from "./report.js";
import { Start } from "./start.js";

/** @typedef {import("../lib/types.js").Experiment} Experiment */
/** @typedef {import("../lib/types.js").Detail} Detail */

const EVERY_MS = 5000;
const STATUS = /** @type {Record<string, string>} */ ({
  pending: "not begun",
  running: "running",
  rolled_back: "rolled back",
  stopped: "stopped",
  shipped: "shipped",
  paused: "paused",
});

/** @param {{state: import("../lib/types.js").State}} props */
export function Experiments({ state }) {
  const { value, problem, refresh } = usePolling((signal) => call("v1/experiments", { signal }), EVERY_MS, []);
  if (!value) {
    return problem && problem.status !== 401
      ? html`<${Trouble} problem=${problem} retry=${refresh} automatic=${false} />`
      : html`<p class="empty" role="status">Loading…</p>`;
  }
  const listed = /** @type {Experiment[]} */ (value.experiments);
  const variants = state.facts?.variants ?? [];
  const starting = state.start !== null;
  const open = () => update({ start: state.start ?? {} });
  const started = (/** @type {string} */ name) => {
    update({ experiment: name, start: null });
    refresh();
  };
  const form = html`<${Start} variants=${variants} listed=${listed} filled=${state.start ?? {}} started=${started} cancel=${() => update({ start: null })} />`;
  if (!listed.length) {
    return starting ? form : html`<${Nothing} variants=${variants} start=${open} />`;
  }
  const chosen = state.experiment === null ? listed[0] : listed.find((one) => one.name === state.experiment);
  const shown = chosen
    ? html`<${One} key=${chosen.name} listed=${chosen} relist=${refresh} />`
    : html`<p class="empty" role="status">There is no experiment “${state.experiment}”. Choose one of the list.</p>`;
  return html`
    <div class="experiments">
      <nav class="list" aria-label="Experiments">
        ${listed.map((one) => html`
          <button key=${one.name} aria-current=${!starting && one === chosen ? "true" : null}
              onClick=${() => update({ experiment: one.name, start: null })}>
            <b>${one.name}</b> <${Status} status=${one.status} />
          </button>`)}
        <button class="start-one" aria-current=${starting ? "true" : null} onClick=${open}>Start an experiment</button>
      </nav>
      ${starting ? form : shown}
    </div>`;
}

/** @param {{status: string}} props */
function Status({ status }) {
  return html`<span class=${`status ${status}`}>${STATUS[status] ?? status}</span>`;
}

/** @param {{listed: Experiment, relist: () => void}} props */
function One({ listed, relist }) {
  const path = `v1/experiments/${encodeURIComponent(listed.name)}`;
  const { value, problem, refresh } = usePolling((signal) => call(path, { signal }), EVERY_MS, [listed.name]);
  const report = usePolling((signal) => text(`${path}/report.html`, { signal }), EVERY_MS, [listed.name]);
  const detail = /** @type {Detail | null} */ (value);
  const one = detail ?? listed;
  const changed = () => {
    refresh();
    report.refresh();
    relist();
  };
  return html`
    <article class="experiment">
      <header>
        <h1>${one.name} <${Status} status=${one.status} /> ${report.value ? html`<${Save} markup=${report.value} name=${listed.name} />` : null}</h1>
        <${Standing} one=${one} />
      </header>
      ${problem && problem.status !== 401 ? html`<${Trouble} problem=${problem} retry=${refresh} automatic=${false} />` : null}
      ${report.problem?.status === 503 ? html`<p class="verdict">The database cannot be reached, so there is no analysis.</p>` : null}
      ${report.value && report.problem?.status !== 503 ? html`<${Report} markup=${report.value} />` : null}
      <${Guardrails} one=${one} history=${detail?.history ?? []} />
      <${Actions} one=${one} path=${path} done=${changed} />
    </article>`;
}

/** @param {{one: Experiment}} props */
function Standing({ one }) {
  const facts = [
    one.kind === "interleave" ? `${exact(one.traffic)} of the units see lists drawn from both arms` : `${exact(one.traffic)} of each arm's units are exposed`,
    one.started ? `since ${when(one.started)} UTC` : "not begun",
    one.shadow ? `${exact(one.shadow)} of requests in shadow` : "",
    one.shipped ? `everybody gets ${one.shipped}` : "",
  ];
  return html`
    <p class="soft">${facts.filter(Boolean).join(" · ")}</p>
    ${one.paused ? html`<p class="wrong">Paused, and everybody gets the default: ${one.paused}. Change the config, or stop it.</p>` : null}`;
}

/** @param {{markup: string, name: string}} props saves the report as one file */
function Save({ markup, name }) {
  const save = () => {
    const url = URL.createObjectURL(new Blob([markup], { type: "text/html" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = `${name}.html`;
    link.click();
    URL.revokeObjectURL(url);
  };
  return html`<button class="share-report" onClick=${save} title="One HTML file that needs no other">Save the report</button>`;
}

/** @param {{variants: import("../lib/types.js").Variant[], start: () => void}} props what to do where there is no experiment */
function Nothing({ variants, start }) {
  const [note, setNote] = useState("");
  const keyless = useKeyless();
  const other = variants.find((one) => !one.default)?.name ?? "pruned20";
  const yaml = `experiments:
  - name: first
    salt: "1"
    arms:
      - {name: control, variant: ${variants.find((one) => one.default)?.name ?? "full"}, weight: 50}
      - {name: treatment, variant: ${other}, weight: 50}
    traffic: 0.1
    metrics:
      - {name: click, kind: proportion, margin: 0.02}
`;
  const copy = () => navigator.clipboard.writeText(yaml).then(() => setNote("Copied."), () => setNote("Select the text to copy it."));
  return html`
    <div class="nothing">
      <h1>No experiment yet</h1>
      <p>An experiment gives a share of your users another variant, and says when it is safe to ship.</p>
      ${keyless
        ? html`<${NeedsKeys} />`
        : html`<p class="presets"><button class="strong" onClick=${start}>Start an experiment</button></p>`}
      <p>Or put this under <code>user_config</code> in the service's config, next to <code>variants</code>; it is taken over
        without a restart.</p>
      <pre tabindex="0">${yaml}</pre>
      <p class="presets"><button onClick=${copy}>Copy</button> <span role="status">${note}</span></p>
      <p class="soft">Then send each request with a <code>unit</code>, such as a user's id, and report what the users did
        to <code>POST /v1/outcomes</code>. The results appear here.</p>
    </div>`;
}
