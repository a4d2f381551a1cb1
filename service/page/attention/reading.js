/** The pair as text, in its own direction and script: where one token looks, or who looks at it. */

import { useState } from "../vendor/hooks.js";
import { html } from "../lib/html.js";
import { percent } from "../lib/format.js";
import { largest, strength } from "./head_map.js";
import { partOf } from "./tokens.js";

/** @typedef {import("./tokens.js").Matrix} Matrix */

const SHADES = 9;
const LISTED = 6;
const LEAST = 0.0005; // less would be written as 0.0 %

/**
 * @param {{matrix: Matrix, texts: string[], from: number, choose: (token: number) => void}} props
 * texts: the query and the title, which say in which direction their tokens run
 */
export function Reading({ matrix, texts, from, choose }) {
  const [inward, setInward] = useState(false);
  const size = matrix.labels.length;
  if (!size) return html`<p class="empty">Only special tokens are left, and they are hidden.</p>`;
  const share = (/** @type {number} */ to) => matrix.values[inward ? to * size + from : from * size + to];
  const shares = Float32Array.from(matrix.labels, (_, to) => share(to));
  const top = [...shares.keys()].filter((to) => shares[to] >= LEAST).sort((a, b) => shares[b] - shares[a]).slice(0, LISTED);
  const hidden = inward ? 0 : matrix.hidden[from];
  return html`
    <div class="reading">
      <p>
        <span class="presets" role="group" aria-label="Direction">
          <button aria-pressed=${!inward} onClick=${() => setInward(false)}>It looks at</button>
          <button aria-pressed=${inward} onClick=${() => setInward(true)}>Looks at it</button>
        </span>
        <bdi class="source">${matrix.labels[from]}</bdi> <span class="soft">${partOf(matrix, from) && `of the ${partOf(matrix, from)}`}</span>
      </p>
      <${Line} name="Query" segment=${0} text=${texts[0]} matrix=${matrix} shares=${shares} from=${from} choose=${choose} />
      <${Line} name="Title" segment=${1} text=${texts[1]} matrix=${matrix} shares=${shares} from=${from} choose=${choose} />
      <ol class="strongest" aria-label="Most attention">
        ${top.map((to) => html`<li><bdi>${matrix.labels[to]}</bdi> <span class="soft">${partOf(matrix, to)}</span> ${percent(shares[to], 1)}</li>`)}
        ${hidden >= LEAST ? html`<li class="soft">hidden tokens ${percent(hidden, 1)}</li>` : null}
      </ol>
      ${matrix.unknown.includes(true) ? html`<p class="soft">Dashed: the vocabulary lacks this piece, so the model reads it as “unknown”.</p>` : null}
    </div>`;
}

/**
 * @param {{name: string, segment: number, text: string, matrix: Matrix, shares: Float32Array, from: number,
 *   choose: (token: number) => void}} props
 */
function Line({ name, segment, text, matrix, shares, from, choose }) {
  const most = largest(shares);
  const own = matrix.labels.flatMap((_, i) => (matrix.segments[i] === segment ? [i] : []));
  return html`
    <div class="line">
      <h3>${name}</h3>
      <p dir=${direction(text)}>
        ${own.map((i) => html`${matrix.glued[i] ? "" : " "}<button key=${i} aria-pressed=${i === from}
          class=${`token${matrix.unknown[i] ? " unknown" : ""} shade-${Math.round(strength(shares[i], most) * (SHADES - 1))}`}
          title=${percent(shares[i], 1) + (matrix.unknown[i] ? ", unknown to the vocabulary" : "")} onClick=${() => choose(i)}><bdi>${matrix.labels[i]}</bdi></button>`)}
      </p>
    </div>`;
}

/** @param {string} text @returns {"rtl" | "ltr"} by its first letter of either kind, as dir="auto" has it */
function direction(text) {
  const letter = /\p{L}/u.exec(text)?.[0] ?? "a";
  return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/.test(letter) ? "rtl" : "ltr";
}
