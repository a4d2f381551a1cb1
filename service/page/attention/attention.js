/** The attention of one pair: all heads small, one of them large, as text and as a map. */

import { useMemo, useState } from "../vendor/hooks.js";
import { activeColumn, labelOf, LETTERS } from "../lib/columns.js";
import { beginning, percent, roleName } from "../lib/format.js";
import { html } from "../lib/html.js";
import { update } from "../lib/store.js";
import { Trouble, UnreadableMasks } from "../lib/trouble.js";
import { TypedInput } from "../lib/typed.js";
import { HeadMap } from "./head_map.js";
import { networkOf, useAttention } from "./loader.js";
import { Reading } from "./reading.js";
import { SmallHeads } from "./small_heads.js";
import { blocks, shown } from "./tokens.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("../lib/types.js").AttentionState} AttentionState */

/** @param {{state: State}} props */
export function Attention({ state }) {
  const { titles } = state;
  const title = titles[titleOf(state)] ?? "";
  const { loaded, problem, retry } = useAttention(state, title);
  const network = networkOf(state);
  const index = network.layer * network.heads + network.head;
  const values = loaded?.heads.get(index);
  const missing = !state.query.trim() ? "Type a query." : titles.length ? "" : "There is no title: paste some in the playground.";
  return html`
    <div class="attention">
      <${Pair} state=${state} />
      <${UnreadableMasks} state=${state} />
      ${problem && problem.status !== 401 ? html`<${Trouble} problem=${problem} retry=${retry} automatic=${false} />` : null}
      <section class="all-heads" aria-label="All heads">
        <${SmallHeads} state=${state} network=${network} loaded=${loaded} />
      </section>
      <section class="one-head" aria-label="One head">
        ${loaded && values
          ? html`<${Head} state=${state} network=${network} loaded=${loaded} values=${values} index=${index} />`
          : html`<p class="empty" role="status">${problem ? "" : missing || "Loading…"}</p>`}
      </section>
    </div>`;
}

/** @param {State} state @returns {number} the index of the chosen title, or of the last one if there are fewer by now */
function titleOf({ attention, titles }) {
  return Math.max(0, Math.min(attention.title, titles.length - 1));
}

/** @param {Partial<AttentionState>} change @param {State} state */
function change(change, state) {
  update({ attention: { ...state.attention, ...change } });
}

/** @param {{state: State}} props */
function Pair({ state }) {
  const { attention, titles, query } = state;
  const pick = (/** @type {Event} */ event) =>
    change({ title: Number(/** @type {HTMLSelectElement} */ (event.target).value) }, state);
  const box = (/** @type {keyof AttentionState} */ name, /** @type {string} */ text) => html`
    <label><input type="checkbox" checked=${attention[name]}
      onChange=${() => change({ [name]: !attention[name] }, state)} /> ${text}</label>`;
  const letter = LETTERS[state.active];
  return html`
    <div class="pair">
      <div class="field"><label for="pair-query">Query</label>
        <${TypedInput} id="pair-query" type="search" dir="auto" value=${query}
          take=${(/** @type {string} */ text) => update({ query: text })} /></div>
      <div class="field title"><label for="pair-title">Title</label>
        <select id="pair-title" dir="auto" value=${titleOf(state)} onChange=${pick}>
          ${titles.map((title, i) => html`<option value=${i}>${beginning(title, 120)}</option>`)}
        </select></div>
      <div class="boxes" role="group" aria-label="What is shown">
        ${box("special", "special tokens")} ${box("words", "whole words")}
        ${box("masked", `under mask ${letter} (${beginning(labelOf(state, activeColumn(state)), 24)})`)}
      </div>
    </div>`;
}

/**
 * @param {{state: State, network: import("./loader.js").Network, loaded: import("./loader.js").Loaded, values: Float32Array,
 *   index: number}} props
 */
function Head({ state, network, loaded, values, index }) {
  const { attention } = state;
  const { originals, encoded } = loaded;
  const matrix = useMemo(
    () => shown(encoded, values, attention),
    [encoded, values, attention.special, attention.words],
  );
  const [source, setSource] = useState(-1); // a token, which may be hidden, or within a word
  const row = matrix.rows[source] ?? -1;
  const from = row >= 0 ? row : strongest(matrix);
  const choose = (/** @type {number} */ chosen) => setSource(matrix.tokens[chosen]);
  const roles = Object.entries(network.study?.heads[index]?.roles ?? {});
  return html`
    <h2>Layer ${network.layer} · head ${network.head}
      ${roles.map(([role, share]) => html`<span class="mark">${roleName(role)}, ${percent(share)} beyond chance</span>`)}
      <span class="soft count">${encoded.tokens.length} tokens</span></h2>
    <${Reading} matrix=${matrix} texts=${originals} from=${from} choose=${choose} />
    <${Blocks} encoded=${encoded} values=${values} />
    <${HeadMap} matrix=${matrix} from=${from} choose=${choose} theme=${state.theme} />`;
}

/** @param {import("./tokens.js").Matrix} matrix @returns {number} the query's token that gives the title most */
function strongest({ special, segments, values, labels }) {
  const given = labels.map((_, row) =>
    segments[row] || special[row] ? -1 : labels.reduce((sum, _label, to) => sum + (segments[to] ? values[row * labels.length + to] : 0), 0),
  );
  return given.length ? given.indexOf(Math.max(...given)) : 0;
}

/** @param {{encoded: import("./tokens.js").Encoded, values: Float32Array}} props */
function Blocks({ encoded, values }) {
  return html`
    <table class="blocks">
      <caption class="unseen">Mean share of attention between query and title</caption>
      <thead><tr><td></td><th scope="col">to the query</th><th scope="col">to the title</th>
        <th scope="col">to special tokens</th></tr></thead>
      <tbody>${blocks(encoded, values).map(({ from, to }) => html`
        <tr><th scope="row">from the ${from}</th>
          ${["query", "title", "special"].map((part) => html`
            <td><span class="share"><i style=${{ width: `${100 * to[part]}%` }}></i></span>${percent(to[part])}</td>`)}
        </tr>`)}</tbody>
    </table>`;
}
