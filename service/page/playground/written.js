/** The queries that the service writes for a question, and what each written word attends to in it. */

import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { range } from "../lib/mask.js";
import { update } from "../lib/store.js";

/** @typedef {{layer: number, head: number, probabilities: number[][]}} HeadMap */
/** @typedef {{question: string[], pieces: string[], heads: HeadMap[]}} Attention */
/** @typedef {{method: "generate", condensed: string, queries: {query: string, score: number}[], attention: Attention}} Generated */
/** @typedef {{text: string, parts: number[]}} Word The pieces that make it up. */

const ALL = "all";
const CHINESE = /[\u3400-\u4dbf\u4e00-\u9fff]/;

/** @param {{answer: Generated}} props */
export function Written({ answer }) {
  const [head, choose] = useState(ALL);
  const { attention, queries } = answer;
  const shown = attention.heads.filter((one) => head === ALL || head === `${one.layer}.${one.head}`);
  const written = wordsOf(attention.pieces, range(attention.pieces.length));
  const asked = wordsOf(attention.question, range(attention.question.length).slice(1, -1));
  return html`
    <ol class="written">
      ${queries.map(({ query, score }) => html`
        <li><button onClick=${() => update({ query })}>Use “<bdi>${query}</bdi>”</button> <span class="soft">${score.toFixed(3)}</span></li>`)}
    </ol>
    <label>What each written word attends to, <select class="alignment-head" value=${head} onChange=${(/** @type {Event} */ event) => choose(valueOf(event))}>
      <option value=${ALL}>mean of all heads</option>
      ${attention.heads.map((one) => html`<option value=${`${one.layer}.${one.head}`}>head ${one.layer}.${one.head}</option>`)}
    </select></label>
    <div class="scrolling">
      <table class="alignment">
        <thead><tr><td></td>${asked.map((word) => html`<th scope="col"><bdi>${word.text}</bdi></th>`)}</tr></thead>
        <tbody>
          ${written.map((row) => html`
            <tr><th scope="row"><bdi>${row.text}</bdi></th>
              ${asked.map((column) => html`<${Cell} value=${weight(shown, row, column)} />`)}</tr>`)}
        </tbody>
      </table>
    </div>
    <p class="soft">Rows: the words that are written. Columns: the question's words. The rest of a row goes to the marks before and after the question.</p>`;
}

/** @param {{value: number}} props */
function Cell({ value }) {
  const percent = Math.round(100 * value);
  return html`<td style=${`--share: ${percent}%`}>${percent ? `${percent} %` : ""}</td>`;
}

/** Words stand between spaces; each Chinese piece is one.
 * @param {string[]} texts @param {number[]} places which of them count @returns {Word[]} */
function wordsOf(texts, places) {
  /** @type {Word[]} */
  const words = [];
  for (const place of places) {
    const last = words[words.length - 1];
    const begins = texts[place].startsWith(" ") || CHINESE.test(texts[place]) || CHINESE.test(last?.text ?? "");
    if (last && !begins) {
      last.text += texts[place];
      last.parts.push(place);
    } else {
      words.push({ text: texts[place].trim(), parts: [place] });
    }
  }
  return words.filter((word) => word.text);
}

/** @param {HeadMap[]} heads @param {Word} row @param {Word} column @returns {number} mean over heads and the row's pieces */
function weight(heads, row, column) {
  let sum = 0;
  for (const { probabilities } of heads)
    for (const piece of row.parts) for (const token of column.parts) sum += probabilities[piece][token];
  return sum / Math.max(1, heads.length * row.parts.length);
}

/** @param {Event} event */
function valueOf(event) {
  return /** @type {HTMLSelectElement} */ (event.target).value;
}
