/** Every head's attention over the pair, small: patterns are told apart at a glance, and one is chosen. */

import { useEffect, useRef } from "../vendor/hooks.js";
import { mainLetter } from "../lib/format.js";
import { html } from "../lib/html.js";
import { range } from "../lib/mask.js";
import { update } from "../lib/store.js";
import { paint } from "./head_map.js";
import { shown } from "./tokens.js";

/** @typedef {import("../lib/types.js").State} State */
/** @typedef {import("./loader.js").Loaded} Loaded */
/** @typedef {import("./loader.js").Network} Network */

/** @param {{state: State, network: Network, loaded: Loaded | null}} props */
export function SmallHeads({ state, network, loaded }) {
  const { layers, heads, layer, head } = network;
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const choose = (/** @type {number} */ index) => {
    const at = (index + layers * heads) % (layers * heads);
    update({ attention: { ...state.attention, layer: Math.floor(at / heads), head: at % heads } });
    /** @type {HTMLElement | null | undefined} */ (box.current?.querySelector(`[data-small="${at}"]`))?.focus();
  };
  const steps = /** @type {Record<string, number>} */ ({
    ArrowLeft: -1,
    ArrowRight: 1,
    ArrowUp: -heads,
    ArrowDown: heads,
  });
  const keys = (/** @type {KeyboardEvent} */ event) => {
    if (!(event.key in steps)) return;
    event.preventDefault();
    choose(layer * heads + head + steps[event.key]);
  };
  return html`
    <div class="small-heads" role="radiogroup" aria-label="Heads: rows are layers" ref=${box} onKeyDown=${keys}>
      ${range(layers).map((row) => html`
        <div class="small-row" key=${row}>
          <span class="soft" aria-hidden="true">${row}</span>
          ${range(heads).map((at) => html`
            <${Small} key=${at} state=${state} network=${network} loaded=${loaded} index=${row * heads + at}
              chosen=${row === layer && at === head} choose=${choose} />`)}
        </div>`)}
    </div>
    <p class="soft">Rows: the token that looks. Columns: the token that is looked at. Faint: spread over many tokens.</p>`;
}

/**
 * @param {{state: State, network: Network, loaded: Loaded | null, index: number, chosen: boolean,
 *   choose: (index: number) => void}} props
 */
function Small({ state, network, loaded, index, chosen, choose }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const { heads, study } = network;
  const values = loaded?.heads.get(index);
  const { special, words } = state.attention;
  useEffect(() => {
    if (!canvas.current) return;
    if (!loaded || !values) {
      canvas.current.width = 1;
      return;
    }
    const matrix = shown(loaded.encoded, values, { special, words });
    paint(canvas.current, matrix.values, matrix.labels.length, 1);
  }, [values, special, words, state.theme]);
  const letter = mainLetter(study?.heads[index]?.roles, { special: false }); // most heads hold that role
  return html`
    <div class="small" role="radio" aria-checked=${chosen} tabindex=${chosen ? 0 : -1} data-small=${index}
      aria-label=${`layer ${Math.floor(index / heads)} head ${index % heads}`} onClick=${() => choose(index)}>
      <canvas ref=${canvas} width="1" height="1"></canvas>
      ${letter ? html`<span class="letter" aria-hidden="true">${letter}</span>` : null}
    </div>`;
}
