/** Says which masks of the address could not be read, until they are changed. */

import { LETTERS } from "./columns.js";
import { html } from "./html.js";

/** @param {{columns: import("./types.js").Column[]}} props */
export function UnreadableMasks({ columns }) {
  return columns.map(({ unreadable }, i) => unreadable && html`
    <div class="trouble">
      <span role="alert">The opened address holds a mask that this model cannot read: ${unreadable}. Mask ${LETTERS[i]} shows all
        heads instead.</span>
    </div>`);
}
