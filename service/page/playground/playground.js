/** The playground: a query, its titles, the heads, and the ranking that they make. */

import { activeColumn } from "../lib/columns.js";
import { Step } from "../lib/explain.js";
import { html } from "../lib/html.js";
import { UnreadableMasks } from "../lib/trouble.js";
import { Condense } from "./condense.js";
import { CopyAs } from "./copy_as.js";
import { Presets, SpecField } from "./grid_tools.js";
import { HeadGrid } from "./head_grid.js";
import { Masks } from "./masks.js";
import { Ranking } from "./ranking.js";
import { Texts } from "./texts.js";
import { TimeSaved } from "./time_saved.js";

/** @param {{state: import("../lib/types.js").State}} props */
export function Playground({ state }) {
  return html`
    <div class="playground">
      <section class="ask" aria-label="Query and titles">
        <${Texts} state=${state} />
        <${CopyAs} state=${state} />
      </section>
      <${Step} state=${state} number="1">Type what people search for, or choose an example. The titles are scored for it.</${Step}>
      <${Condense} state=${state} />
      <section class="heads" aria-label="Attention heads">
        <${UnreadableMasks} state=${state} />
        <${Masks} state=${state} />
        <${Presets} state=${state} />
        <${SpecField} key=${activeColumn(state).id} state=${state} />
        <${HeadGrid} state=${state} />
      </section>
      <section class="result" aria-label="Ranking" aria-busy=${state.busy}>
        <${Step} state=${state} number="3">Read what moved without the heads that are off: ▲ and ▼ count places from the base, and the small number is the change of the score.</${Step}>
        <${Ranking} state=${state} />
        <${TimeSaved} state=${state} />
      </section>
    </div>`;
}
