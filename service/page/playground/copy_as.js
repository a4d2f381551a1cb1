/** The active mask's request as others run it: a link to this page, curl, Python, a variant of serve.yaml. */

import { useRef, useState } from "../vendor/hooks.js";
import { addressOf } from "../lib/address.js";
import { storedKey } from "../lib/api.js";
import { activeColumn } from "../lib/columns.js";
import { defaultMask } from "../lib/facts.js";
import { html } from "../lib/html.js";
import { combined, isBinary, requestForm } from "../lib/mask.js";

/** @typedef {import("../lib/types.js").State} State */

const FORMS = /** @type {const} */ ([
  ["link", "Link", (/** @type {State} */ state) => new URL(addressOf(state), document.baseURI).href],
  ["curl", "curl", curl],
  ["python", "Python", python],
  ["yaml", "serve.yaml", yaml],
]);

/** @param {{state: State}} props */
export function CopyAs({ state }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [form, setForm] = useState("link");
  const [open, setOpen] = useState(false);
  const [note, setNote] = useState("");
  const show = () => {
    setNote("");
    setOpen(true);
    dialog.current?.showModal();
  };
  const [, , made] = FORMS.find(([name]) => name === form) ?? FORMS[0];
  const text = open ? made(state) : "";
  const copy = async () => setNote((await copied(text, dialog.current)) ? "Copied." : "Press Ctrl+C to copy.");
  return html`
    <button class="strong" onClick=${show}>Copy as…</button>
    <dialog class="copy" ref=${dialog} aria-labelledby="copy-title" onClose=${() => setOpen(false)}>
      <h2 id="copy-title">Copy as</h2>
      <div class="presets" role="group" aria-label="Form">
        ${FORMS.map(([name, label]) => html`
          <button aria-pressed=${name === form} onClick=${() => { setForm(name); setNote(""); }}>${label}</button>`)}
      </div>
      <textarea readonly rows="10" spellcheck="false" aria-label=${`As ${form}`} value=${text}></textarea>
      <p class="bottom">
        <button class="strong" onClick=${copy}>Copy</button>
        <button onClick=${() => dialog.current?.close()}>Close</button>
        <span role="status">${note}</span>
      </p>
    </dialog>`;
}

/** @param {string} text @param {HTMLElement | null} dialog Plain http has no clipboard: there the text is selected. */
async function copied(text, dialog) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    dialog?.querySelector("textarea")?.select();
    return false;
  }
}

/** @param {State} state @returns {Record<string, unknown>} */
function bodyOf({ query, titles, facts, columns, active }) {
  const shape = /** @type {import("../lib/mask.js").Shape} */ (facts?.model);
  const { mask, variant } = columns[active];
  return mask ? { query, titles, head_mask: requestForm(mask, shape) } : { query, titles, variant };
}

/** @param {State} state */
function curl(state) {
  const body = JSON.stringify(bodyOf(state), null, 1).replaceAll("'", "'\\''");
  const url = new URL("v1/score", document.baseURI);
  const key = storedKey() ? ' -H "authorization: Bearer $HEADROOM_API_KEY"' : "";
  return `curl -s ${url} -H 'content-type: application/json'${key} -d '${body}'\n`;
}

/** @param {State} state */
function python(state) {
  const { query, titles, ...how } = bodyOf(state);
  const rest = Object.entries(how).map(([name, value]) => `        "${name}": ${literal(value)},\n`);
  const url = new URL("v1/score", document.baseURI);
  const key = storedKey() ? `    headers={"authorization": f"Bearer {os.environ['HEADROOM_API_KEY']}"},\n` : "";
  return `${key ? "import os\n\n" : ""}import requests

answer = requests.post(
    "${url}",
    json={
        "query": ${literal(query)},
        "titles": [
${/** @type {string[]} */ (titles).map((title) => `            ${literal(title)},\n`).join("")}        ],
${rest.join("")}    },
${key}    timeout=10,
)
answer.raise_for_status()
for result in answer.json()["results"]:
    print(result["index"], result["score"], result["label"])
`;
}

/** @param {unknown} value JSON is also Python here: there is no true, false or null in it */
function literal(value) {
  return JSON.stringify(value);
}

/** @param {State} state */
function yaml(state) {
  const { mask, variant } = activeColumn(state);
  const facts = /** @type {import("../lib/types.js").Facts} */ (state.facts);
  const isThere = facts.variants.some(({ name }) => name === variant);
  if (!mask) return isThere ? `# ${variant} is already a variant of this service\n` : `# this service has no variant ${variant}\n`;
  const under = defaultMask(facts);
  if (!under) {
    return `# These scores are made on top of the default variant, ${facts.variants.find((one) => one.default)?.name}.
# This page does not know all of it, so it cannot give a variant with the same scores.
`;
  }
  const whole = combined(mask, under); // a variant's mask stands alone, a request's does not
  const form = JSON.stringify(requestForm(whole, facts.model)).replaceAll('":', '": ');
  const sliced = isBinary(whole) ? ", sliced: true" : "";
  return `# one more entry for \`variants\`, under applications[0].deployments[0].user_config of deploy/serve.yaml
- {name: mine, head_mask: ${form}${sliced}}
`;
}
