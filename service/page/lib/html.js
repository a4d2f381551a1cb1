/** The one way markup is made: htm templates over preact. Values become text or attributes, never markup. */

import { h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
