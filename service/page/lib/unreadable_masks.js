/** Says which masks of the address could not be read, until they are changed. */

import { labelOf, LETTERS } from "./columns.js";
import { html } from "./html.js";

/** @param {{state: import("./types.js").State}} props */
export function UnreadableMasks({ state }) {
  return state.columns.map((one, i) => one.unreadable && html`
    <div class="trouble">
      <span role="alert">The opened address holds a mask that this model cannot read: ${one.unreadable}. Mask ${LETTERS[i]}${" "}
        shows ${labelOf(state, one)} instead.</span>
    </div>`);
}
