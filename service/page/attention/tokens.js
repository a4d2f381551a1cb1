/** Tokens as people read them: word pieces joined, special tokens hidden, and the attention that goes with it. */

/**
 * @typedef {object} Matrix One head's attention as it is shown.
 * @property {string[]} labels
 * @property {number[]} segments 0 query, 1 title
 * @property {boolean[]} glued whether no space stands before it in the text
 * @property {Float32Array} values row by row: how much of its attention a row's token gives a column's
 * @property {boolean[]} unknown whether the vocabulary lacks the token; its label is then the text itself
 * @property {Float32Array} hidden of each row, the share that goes to hidden tokens
 */

const SPECIAL = /^(\[(CLS|SEP|PAD|MASK)\]|<\/?s>|<pad>|<mask>)$/;
const UNKNOWN = /^(\[UNK\]|<unk>)$/;

/** @param {string} token */
export function isSpecial(token) {
  return SPECIAL.test(token);
}

/**
 * Word pieces are written `##ing` (BERT), or a word's first piece is `▁word` or `Ġword` (SentencePiece, GPT-2).
 * @param {string[]} tokens
 * @returns {{text: string, continues: boolean}[]} each token's text, and whether it goes on with the word before
 */
export function pieces(tokens) {
  const marksStarts = tokens.some((token) => /^[▁Ġ]/.test(token));
  return tokens.map((token, i) => {
    if (isSpecial(token)) return { text: token, continues: false };
    if (token.startsWith("##") && token.length > 2) return { text: token.slice(2), continues: i > 0 };
    const starts = /^[▁Ġ]/.test(token);
    const afterSpecial = i === 0 || isSpecial(tokens[i - 1]);
    return { text: starts ? token.slice(1) : token, continues: marksStarts && !starts && !afterSpecial };
  });
}

/**
 * @param {string[]} tokens @param {number[]} segments @param {Float32Array} values n × n
 * @param {{special: boolean, words: boolean}} options
 * @param {string[]} [spelled] the tokens with the text of unknown ones
 * @returns {Matrix}
 */
export function shown(tokens, segments, values, { special, words }, spelled = tokens) {
  const parts = pieces(tokens);
  /** @type {number[][]} */
  const groups = [];
  parts.forEach(({ continues }, i) => {
    if (words && continues && groups.length) groups[groups.length - 1].push(i);
    else groups.push([i]);
  });
  const kept = groups.filter(([first]) => special || !isSpecial(tokens[first]));
  const column = new Int32Array(tokens.length).fill(-1);
  kept.forEach((group, at) => group.forEach((i) => (column[i] = at)));
  const size = kept.length;
  const summed = new Float32Array(size * size);
  const hidden = new Float32Array(size);
  kept.forEach((group, row) => {
    for (const from of group) {
      for (let to = 0; to < tokens.length; to++) {
        const share = values[from * tokens.length + to] / group.length;
        if (column[to] < 0) hidden[row] += share;
        else summed[row * size + column[to]] += share;
      }
    }
  });
  return {
    labels: kept.map((group) => labelOf(group, spelled, parts, words)),
    unknown: kept.map((group) => group.some((i) => UNKNOWN.test(tokens[i]))),
    segments: kept.map(([first]) => segments[first]),
    glued: kept.map(([first]) => parts[first].continues),
    values: summed,
    hidden,
  };
}

/** @param {number[]} group @param {string[]} tokens @param {{text: string}[]} parts @param {boolean} words */
function labelOf(group, tokens, parts, words) {
  if (group.some((i) => UNKNOWN.test(parts[i].text))) return group.map((i) => tokens[i].replace(/^[▁Ġ]/, "")).join("");
  return words ? group.map((i) => parts[i].text).join("") : tokens[group[0]].replace(/^[▁Ġ]/, "");
}

/**
 * @param {string[]} tokens @param {number[]} segments @param {Float32Array} values n × n
 * @returns {{from: string, to: Record<string, number>}[]} where the query's and the title's tokens look, in mean
 */
export function blocks(tokens, segments, values) {
  const kind = tokens.map((token, i) => (isSpecial(token) ? "special" : segments[i] ? "title" : "query"));
  return ["query", "title"].map((from) => {
    const rows = kind.flatMap((one, i) => (one === from ? [i] : []));
    /** @type {Record<string, number>} */
    const to = { query: 0, title: 0, special: 0 };
    for (const row of rows) {
      kind.forEach((one, i) => (to[one] += values[row * tokens.length + i] / rows.length));
    }
    return { from, to };
  });
}

/**
 * @param {Matrix} matrix @param {number} i
 * @returns {string} the part of the pair that a token is in, as a word may be in both; empty for a special token
 */
export function partOf({ labels, segments }, i) {
  return isSpecial(labels[i]) ? "" : segments[i] ? "title" : "query";
}

/**
 * Finds the text of unknown tokens: what stands between the known ones around them.
 * @param {string[]} tokens @param {number[]} segments @param {string[]} texts the query and the title
 * @returns {string[]} the tokens with that text in place of unknown ones
 */
export function withUnknown(tokens, segments, texts) {
  if (!tokens.some((token) => UNKNOWN.test(token))) return tokens;
  const plain = (/** @type {string} */ text) => text.normalize("NFKC").toLowerCase();
  const spelled = [...tokens];
  const parts = pieces(tokens);
  texts.forEach((original, segment) => {
    const text = original.normalize("NFKC");
    const own = tokens.flatMap((token, i) => (segments[i] === segment && !isSpecial(token) ? [i] : []));
    let from = 0; // of the text that is not spelled yet
    own.forEach((i, n) => {
      if (!UNKNOWN.test(tokens[i])) {
        const at = plain(text).indexOf(plain(parts[i].text), from);
        if (at >= 0) from = at + parts[i].text.length;
        return;
      }
      const next = own[n + 1];
      const end = next === undefined || UNKNOWN.test(tokens[next]) ? -1 : plain(text).indexOf(plain(parts[next].text), from);
      const rest = text.slice(from, end < 0 ? undefined : end).trimStart();
      const word = next !== undefined && UNKNOWN.test(tokens[next]) ? rest.split(/\s/)[0] : rest.trim();
      from = text.indexOf(word, from) + word.length;
      if (word) spelled[i] = word;
    });
  });
  return spelled;
}
