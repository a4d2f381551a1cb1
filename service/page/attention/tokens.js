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
  const { tokens, segments, special } = pair;
  if (!tokens.some((token) => UNKNOWN.test(token))) return pair;
  const spelled = [...pair.texts];
  originals.forEach((original, segment) => {
    const own = tokens.flatMap((_, i) => (segments[i] === segment && !special[i] ? [i] : []));
    spell(spelled, own, tokens, characters(original));
  });
  return { ...pair, texts: spelled };
}

/** @typedef {{written: string, plain: string}} Character One as it was typed, and as known tokens may write it. */

/** @param {string} text @returns {Character[]} */
function characters(text) {
  return [...text.normalize("NFKC")].map((written) => ({ written, plain: written.toLowerCase() }));
}

/**
 * @param {string[]} spelled the tokens' texts; those of unknown ones are replaced @param {number[]} own the text's tokens
 * @param {string[]} tokens @param {Character[]} text
 */
function spell(spelled, own, tokens, text) {
  const isUnknown = (/** @type {number | undefined} */ i) => i !== undefined && UNKNOWN.test(tokens[i]);
  let from = 0; // of the characters that are not spelled yet
  own.forEach((i, n) => {
    if (!isUnknown(i)) {
      from = find(text, spelled[i].trim(), from)?.end ?? from;
      return;
    }
    const next = own.slice(n + 1).find((other) => isUnknown(other) || spelled[other].trim()); // a space alone stands anywhere
    const end = next === undefined || isUnknown(next) ? text.length : (find(text, spelled[next].trim(), from)?.start ?? text.length);
    const start = from + leadingSpaces(text.slice(from, end));
    const words = text.slice(start, end).map(({ written }) => written).join("").trimEnd();
    const isOneOfSeveral = isUnknown(next) || own[n + 1] !== next; // then each is one word
    const word = isOneOfSeveral ? words.split(/\s/)[0] : words;
    from = start + [...word].length;
    if (word) spelled[i] = spelled[i].replace(/\S+/, () => word);
  });
}

/** @param {Character[]} text */
function leadingSpaces(text) {
  const first = text.findIndex(({ written }) => written.trim());
  return first < 0 ? text.length : first;
}

/**
 * @param {Character[]} text @param {string} piece @param {number} from
 * @returns {{start: number, end: number} | null} where the piece stands, in characters of the text; null: it does not
 */
function find(text, piece, from) {
  const wanted = characters(piece).map(({ plain }) => plain).join("");
  for (let start = from; start < text.length; start++) {
    let met = "";
    for (let end = start; met.length < wanted.length && end < text.length; ) {
      met += text[end++].plain;
      if (met === wanted) return { start, end };
    }
  }
  return null;
}
