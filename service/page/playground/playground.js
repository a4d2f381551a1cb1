/** The playground: a query, its titles, the heads, and the ranking that they make. */

import { html } from "../lib/html.js";
import { UnreadableMasks } from "../lib/unreadable_masks.js";
import { Condense } from "./condense.js";
import { CopyAs } from "./copy_as.js";
import { GridTools, Presets } from "./grid_tools.js";
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
      <${Condense} state=${state} />
      <section class="heads" aria-label="Attention heads">
        <${UnreadableMasks} state=${state} />
        <${Masks} state=${state} />
        <${Presets} state=${state} />
        <${HeadGrid} state=${state} />
        <${GridTools} state=${state} />
      </section>
      <section class="result" aria-label="Ranking" aria-busy=${state.busy}>
        <${Ranking} state=${state} />
        <${TimeSaved} state=${state} />
      </section>
    </div>`;
}
