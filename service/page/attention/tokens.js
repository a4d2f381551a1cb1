/** Tokens as people read them: word pieces joined, special tokens hidden, and the attention that goes with it. */

/**
 * @typedef {object} Encoded A pair's tokens.
 * @property {string[]} tokens as the vocabulary writes them
 * @property {string[]} texts as people read them, with a space before the first one of a word; of tokens that share a
 *   character, the first has it and the others are empty
 * @property {boolean[]} special whether a token belongs to neither text
 * @property {number[]} segments 0 query, 1 title
 */

/**
 * @typedef {object} Matrix One head's attention as it is shown.
 * @property {string[]} labels
 * @property {Int32Array} rows the row of each token; -1: it is hidden
 * @property {number[]} tokens the first token of each row
 * @property {boolean[]} special
 * @property {number[]} segments 0 query, 1 title
 * @property {boolean[]} glued whether no space stands before it in the text
 * @property {Float32Array} values row by row: how much of its attention a row's token gives a column's
 * @property {boolean[]} unknown whether the vocabulary lacks the token; its label is then the text itself
 * @property {Float32Array} hidden of each row, the share that goes to hidden tokens
 */

const UNKNOWN = /^(\[UNK\]|<unk>)$/;

/**
 * @param {Encoded} pair @param {Float32Array} values n × n
 * @param {{special: boolean, words: boolean}} options
 * @returns {Matrix}
 */
export function shown({ tokens, texts, special: isSpecial, segments }, values, { special, words }) {
  const continues = texts.map((text, i) => {
    const isOfOneText = i > 0 && segments[i] === segments[i - 1] && !isSpecial[i] && !isSpecial[i - 1];
    return isOfOneText && goesOn(texts[i - 1], text);
  });
  /** @type {number[][]} */
  const groups = [];
  texts.forEach((text, i) => {
    if (i && (!text || (words && continues[i]))) groups[groups.length - 1].push(i);
    else groups.push([i]);
  });
  const kept = groups.filter(([first]) => special || !isSpecial[first]);
  const rows = new Int32Array(tokens.length).fill(-1);
  kept.forEach((group, at) => group.forEach((i) => (rows[i] = at)));
  const size = kept.length;
  const summed = new Float32Array(size * size);
  const hidden = new Float32Array(size);
  kept.forEach((group, row) => {
    for (const from of group) {
      for (let to = 0; to < tokens.length; to++) {
        const share = values[from * tokens.length + to] / group.length;
        if (rows[to] < 0) hidden[row] += share;
        else summed[row * size + rows[to]] += share;
      }
    }
  });
  return {
    labels: kept.map((group) => labelOf(group.map((i) => texts[i]).join(""))),
    rows,
    tokens: kept.map(([first]) => first),
    special: kept.map(([first]) => isSpecial[first]),
    unknown: kept.map((group) => group.some((i) => UNKNOWN.test(tokens[i]))),
    segments: kept.map(([first]) => segments[first]),
    glued: kept.map(([first]) => continues[first]),
    values: summed,
    hidden,
  };
}

/** @param {string} before @param {string} text @returns {boolean} whether a token goes on with the word before; a space alone begins one */
function goesOn(before, text) {
  return !/^\s/.test(text) && (before === " " || !/\s$/.test(before));
}

/** @param {string} text @returns {string} the text, or a sign for white space alone */
function labelOf(text) {
  return text.trim() || (text.includes("\n") ? "↵" : "␣");
}

/**
 * @param {Encoded} pair @param {Float32Array} values n × n
 * @returns {{from: string, to: Record<string, number>}[]} where the query's and the title's tokens look, in mean
 */
export function blocks({ special, segments }, values) {
  const kind = segments.map((segment, i) => (special[i] ? "special" : segment ? "title" : "query"));
  return ["query", "title"].map((from) => {
    const rows = kind.flatMap((one, i) => (one === from ? [i] : []));
    /** @type {Record<string, number>} */
    const to = { query: 0, title: 0, special: 0 };
    for (const row of rows) {
      kind.forEach((one, i) => (to[one] += values[row * kind.length + i] / rows.length));
    }
    return { from, to };
  });
}

/**
 * @param {Matrix} matrix @param {number} i
 * @returns {string} the part of the pair that a token is in, as a word may be in both; empty for a special token
 */
export function partOf({ special, segments }, i) {
  return special[i] ? "" : segments[i] ? "title" : "query";
}

/**
 * Finds the text of unknown tokens: what stands between the known ones around them.
 * @param {Encoded} pair @param {string[]} originals the query and the title
 * @returns {Encoded} with that text in place of unknown ones
 */
export function withUnknown(pair, originals) {
  const { tokens, texts, special, segments } = pair;
  if (!tokens.some((token) => UNKNOWN.test(token))) return pair;
  const plain = (/** @type {string} */ text) => text.normalize("NFKC").toLowerCase();
  const spelled = [...texts];
  originals.forEach((original, segment) => {
    const text = original.normalize("NFKC");
    const own = tokens.flatMap((_, i) => (segments[i] === segment && !special[i] ? [i] : []));
    let from = 0; // of the text that is not spelled yet
    own.forEach((i, n) => {
      if (!UNKNOWN.test(tokens[i])) {
        const piece = texts[i].trim();
        const at = plain(text).indexOf(plain(piece), from);
        if (at >= 0) from = at + piece.length;
        return;
      }
      const next = own[n + 1];
      const end = next === undefined || UNKNOWN.test(tokens[next]) ? -1 : plain(text).indexOf(plain(texts[next].trim()), from);
      const rest = text.slice(from, end < 0 ? undefined : end).trimStart();
      const word = next !== undefined && UNKNOWN.test(tokens[next]) ? rest.split(/\s/)[0] : rest.trim();
      from = text.indexOf(word, from) + word.length;
      if (word) spelled[i] = texts[i].replace(/\S+/, () => word);
    });
  });
  return { ...pair, texts: spelled };
}
