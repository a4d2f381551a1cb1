/** Starts the page. */

import { render } from "./vendor/preact.js";
import { followAddress, reread, stateOf } from "./lib/address.js";
import { column, renamed } from "./lib/columns.js";
import { rememberStep } from "./lib/explain.js";
import { exampleHead, exampleLayer, followFacts, loadFacts } from "./lib/facts.js";
import { html } from "./lib/html.js";
import { allOn, range, withWeight } from "./lib/mask.js";
import { followState } from "./lib/scoring.js";
import { current, subscribe, update } from "./lib/store.js";
import { EXAMPLES } from "./lib/texts.js";
import { rememberTheme } from "./lib/theme.js";
import { Shell } from "./shell.js";

/** @param {string} hash the address from the # on */
function open(hash) {
  update(stateOf(hash, current().facts));
}

function beginTexts() {
  const { query, titles } = EXAMPLES[0];
  if (!current().query && !current().titles.length) update({ query, titles });
}

/** Gives the columns their masks as soon as the model's shape is known. */
function beginColumns() {
  const { facts } = current();
  if (!facts) return;
  const found = stateOf(address, facts);
  update({ attention: found.attention ?? { ...current().attention, ...exampleHead(facts) } });
  if (found.columns) {
    update({ columns: found.columns, active: found.active, baseline: found.baseline });
    return;
  }
  const all = allOn(facts.model);
  const layer = exampleLayer(facts); // off, so that there is something to read from the start
  const heads = range(facts.model.heads).map((head) => layer * facts.model.heads + head);
  update({ columns: [column(all), column(withWeight(all, heads, 0, facts.model))], active: 1, baseline: 0 });
}

/** @param {import("./lib/mask.js").Shape} a @param {import("./lib/mask.js").Shape} b */
function sameShape(a, b) {
  return a.layers === b.layers && a.heads === b.heads;
}

const address = location.hash;
rememberTheme();
rememberStep();
open(address);
beginTexts();
subscribe((state, before) => {
  if (state.facts === before.facts) return;
  if (!before.facts || !state.facts) beginColumns();
  else if (sameShape(before.facts.model, state.facts.model)) update(renamed(state));
  else update(reread(before, state.facts));
});
followState();
followFacts();
followAddress(open);
loadFacts();
render(html`<${Shell} />`, /** @type {Element} */ (document.getElementById("page")));
