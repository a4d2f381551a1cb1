/** The experiments of the live config: the list, and one of them in full. */

import { call } from "../lib/api.js";
import { count, exact, when } from "../lib/format.js";
import { html } from "../lib/html.js";
import { usePolling } from "../lib/polling.js";
import { update } from "../lib/store.js";
import { Trouble } from "../lib/trouble.js";
import { Actions } from "./actions.js";
import { Arms, Guardrails, Log } from "./arms.js";
import { Findings } from "./findings.js";
import { Shadow } from "./shadow.js";

/** @typedef {import("./types.js").Experiment} Experiment */
/** @typedef {import("./types.js").Detail} Detail */
/** @typedef {import("./types.js").Look} Look */

const EVERY_MS = 5000;
const STATUS = /** @type {Record<string, string>} */ ({
  pending: "not begun",
  running: "running",
  rolled_back: "rolled back",
  stopped: "stopped",
  shipped: "shipped",
  changed: "changed",
});

/** @param {{state: import("../lib/types.js").State}} props */
export function Experiments({ state }) {
  const { value, problem, now } = usePolling((signal) => call("v1/experiments", { signal }), EVERY_MS, []);
  if (!value) {
    return problem && problem.status !== 401
      ? html`<${Trouble} problem=${problem} again=${now} alone=${false} />`
      : html`<p class="empty" role="status">Loading…</p>`;
  }
  const listed = /** @type {Experiment[]} */ (value.experiments);
  if (!listed.length) {
    return html`<p class="empty">There is no experiment in the live config.
      <br />Declare one under <code>experiments</code> in <code>deploy/serve.yaml</code>.</p>`;
  }
  const chosen = listed.find((one) => one.name === state.experiment) ?? listed[0];
  return html`
    <div class="experiments">
      <nav class="list" aria-label="Experiments">
        ${listed.map((one) => html`
          <button key=${one.name} aria-current=${one === chosen ? "true" : null} onClick=${() => update({ experiment: one.name })}>
            <b>${one.name}</b> <${Status} status=${one.status} />
            <span class="soft">${count(one.arms.reduce((sum, arm) => sum + arm.exposures, 0))} units</span>
          </button>`)}
      </nav>
      <${One} key=${chosen.name} listed=${chosen} relist=${now} />
    </div>`;
}

/** @param {{status: string}} props */
function Status({ status }) {
  return html`<span class=${`status ${status}`}>${STATUS[status] ?? status}</span>`;
}

/** @param {{listed: Experiment, relist: () => void}} props */
function One({ listed, relist }) {
  const path = `v1/experiments/${encodeURIComponent(listed.name)}`;
  const { value, problem, now } = usePolling(async (signal) => {
    const detail = await call(path, { signal });
    const { looks } = await call(`${path}/course`, { signal });
    return { detail, looks };
  }, EVERY_MS, [listed.name]);
  const detail = /** @type {Detail | undefined} */ (value?.detail);
  const changed = () => {
    now();
    relist();
  };
  return html`
    <article class="experiment">
      <header>
        <h1>${listed.name} <${Status} status=${listed.status} /></h1>
        <${Standing} one=${listed} />
      </header>
      ${problem && problem.status !== 401 ? html`<${Trouble} problem=${problem} again=${now} alone=${false} />` : null}
      ${detail ? html`<${Verdict} detail=${detail} />` : null}
      <${Arms} one=${listed} report=${detail?.report ?? null} />
      ${detail?.report ? html`<${Findings} report=${detail.report} looks=${value?.looks ?? []} />` : null}
      ${detail?.report ? html`<${Shadow} report=${detail.report} share=${listed.shadow} />` : null}
      <${Guardrails} one=${listed} history=${detail?.history ?? []} />
      ${detail ? html`<${Log} history=${detail.history} />` : null}
      <${Actions} one=${listed} path=${path} done=${changed} />
    </article>`;
}

/** @param {{one: Experiment}} props */
function Standing({ one }) {
  const facts = [
    `${exact(one.traffic)} of each arm's units are exposed`,
    one.started ? `since ${when(one.started)} UTC` : "not begun",
    one.next_step ? `next step of the ramp ${when(one.next_step)} UTC` : "",
    one.shadow ? `${exact(one.shadow)} of requests in shadow` : "",
    one.shipped ? `everybody gets ${one.shipped}` : "",
  ];
  return html`<p class="soft">${facts.filter(Boolean).join(" · ")}</p>`;
}

/** @param {{detail: Detail}} props */
function Verdict({ detail }) {
  if (!detail.report) return html`<p class="verdict wait">The database cannot be reached, so there is no analysis.</p>`;
  const { recommendation, text } = detail.report;
  return html`<p class=${`verdict ${recommendation}`}><b>${recommendation}</b> ${text}</p>`;
}
