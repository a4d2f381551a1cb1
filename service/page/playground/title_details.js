/** A title in full: the probability of each grade under each mask, and the way to its attention. */

import { LETTERS } from "../lib/columns.js";
import { percent } from "../lib/format.js";
import { html } from "../lib/html.js";
import { update } from "../lib/store.js";

/** @typedef {import("../lib/types.js").State} State */

/** @param {{state: State, answer: import("../lib/types.js").Answer, index: number}} props */
export function Details({ state, answer, index }) {
  const grades = state.facts?.model.grades;
  const { tokens } = answer.columns[0].results[index];
  const look = () => update({ view: "attention", attention: { ...state.attention, title: index } });
  const letter = (/** @type {number} */ id) => LETTERS[state.columns.findIndex((one) => one.id === id)] ?? "";
  return html`
    <div class="details">
      ${grades
        ? html`<table>
            <thead><tr><th scope="col">mask</th>${grades.map((grade) => html`<th scope="col">${grade}</th>`)}</tr></thead>
            <tbody>${answer.ids.map((id, i) => html`
              <tr><th scope="row">${letter(id)}</th>
                ${(answer.columns[i].results[index].probabilities ?? []).map((share) => html`<td>${percent(share, 1)}</td>`)}
              </tr>`)}</tbody>
          </table>`
        : null}
      <p><span class="soft">${tokens} tokens</span> <button onClick=${look}>See the attention</button></p>
    </div>`;
}
