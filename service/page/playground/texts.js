/** The query and the titles: typed, pasted, dropped as a file, or one of the examples. */

import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { update } from "../lib/store.js";
import { decoded, EXAMPLES, limited, readFile, titlesOf } from "../lib/texts.js";

const MAX_FILE_BYTES = 4_000_000;

/** @param {{state: import("../lib/types.js").State}} props */
export function Texts({ state }) {
  const [open, setOpen] = useState(false);
  const [note, setNote] = useState("");
  const { query, titles, problem } = state;
  const wrong = (/** @type {string} */ field) => (problem?.param === field ? problem.message : "");
  const pick = (/** @type {Event} */ event) => {
    const select = /** @type {HTMLSelectElement} */ (event.target);
    const example = EXAMPLES[Number(select.value)];
    if (example) update({ query: example.query, titles: example.titles });
    setNote("");
  };
  const drop = async (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files[0];
    if (file) setNote(await take(file));
  };
  const chosen = EXAMPLES.findIndex((example) => example.query === query && example.titles === titles);
  const isOpen = open || !titles.length || Boolean(wrong("titles"));
  return html`
    <div class="texts" onDragOver=${(/** @type {Event} */ event) => event.preventDefault()} onDrop=${drop}>
      <div class="field query">
        <label for="query">Query</label>
        <input id="query" type="search" dir="auto" autocomplete="off" value=${query}
          aria-invalid=${wrong("query") ? "true" : null} aria-describedby="query-wrong"
          onInput=${(/** @type {InputEvent} */ event) => update({ query: valueOf(event) })} />
        <p class="wrong" id="query-wrong" role="alert">${query.trim() ? wrong("query") : "Type a query."}</p>
      </div>
      <div class="field examples">
        <label for="example">Examples</label>
        <select id="example" aria-label="Examples" value=${chosen} onChange=${pick}>
          <option value="-1" disabled>Choose an example…</option>
          ${EXAMPLES.map((example, i) => html`<option value=${i}>${example.name}</option>`)}
        </select>
      </div>
      <button aria-expanded=${isOpen} aria-controls="titles-field" onClick=${() => setOpen(!isOpen)}>
        ${isOpen ? "Close titles" : `Edit ${titles.length} ${titles.length === 1 ? "title" : "titles"}`}
      </button>
      ${isOpen ? html`<${TitlesField} titles=${titles} wrong=${wrong("titles")} say=${setNote} />` : null}
      <p class="soft note" role="status">${note}</p>
    </div>`;
}

/** @param {{titles: string[], wrong: string, say: (note: string) => void}} props */
function TitlesField({ titles, wrong, say }) {
  const [text, setText] = useState(titles.join("\n"));
  const known = titlesOf(text).length === titles.length && titlesOf(text).every((title, i) => title === titles[i]);
  const change = (/** @type {InputEvent} */ event) => {
    setText(valueOf(event));
    const { titles: taken, note } = limited(titlesOf(valueOf(event)));
    update({ titles: taken });
    say(note);
  };
  const open = async (/** @type {Event} */ event) => {
    const file = /** @type {HTMLInputElement} */ (event.target).files?.[0];
    if (file) say(await take(file));
  };
  return html`
    <div class="field titles" id="titles-field">
      <label for="titles">Titles, one per line</label>
      <textarea id="titles" rows="8" dir="auto" spellcheck="false" value=${known ? text : titles.join("\n")}
        aria-invalid=${wrong ? "true" : null} aria-describedby="titles-wrong" onInput=${change}></textarea>
      <p class="wrong" id="titles-wrong" role="alert">${wrong}</p>
      <p class="soft">
        Or drop a csv file here, with a column <code>title</code> and, if you like, <code>query</code>:${" "}
        <input type="file" aria-label="Open a csv file" accept=".csv,.tsv,.txt,text/csv,text/plain" onChange=${open} />
      </p>
    </div>`;
}

/** @param {File} file @returns {Promise<string>} what was taken, or why not */
async function take(file) {
  if (file.size > MAX_FILE_BYTES) return `${file.name} is larger than 4 MB.`;
  const text = decoded(await file.arrayBuffer());
  if (text === null) return `${file.name} is not text in UTF-8 or UTF-16. Save it as a csv file in UTF-8.`;
  const { query, titles, note } = readFile(text);
  if (!titles.length) return `${file.name} holds no titles.`;
  update(query === null ? { titles } : { query, titles });
  return `${file.name}: ${note}`;
}

/** @param {Event} event */
function valueOf(event) {
  return /** @type {HTMLInputElement} */ (event.target).value;
}
