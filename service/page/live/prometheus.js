/** Reads the Prometheus text format, and makes rates and quantiles of two scrapes. */

/** @typedef {{labels: Record<string, string>, value: number}} Sample */
/** @typedef {Map<string, Sample[]>} Scrape samples by metric name */

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** @param {string} text @returns {Scrape} */
export function parse(text) {
  /** @type {Scrape} */
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (!match) continue;
    const [, name, labels = "", value] = match;
    const sample = { labels: labelsOf(labels), value: value === "+Inf" ? Infinity : Number(value) };
    const samples = found.get(name);
    if (samples) samples.push(sample);
    else found.set(name, [sample]);
  }
  return found;
}

/** @param {string} text */
function labelsOf(text) {
  const escapes = /** @type {Record<string, string>} */ ({ n: "\n", '"': '"', "\\": "\\" });
  return Object.fromEntries(
    [...text.matchAll(LABEL)].map(([, name, value]) => [name, value.replace(/\\(.)/g, (_, char) => escapes[char] ?? char)]),
  );
}

/**
 * @param {Scrape} scrape @param {string} name @param {Record<string, string>} [wanted] labels it must have
 * @returns {Sample[]}
 */
export function samples(scrape, name, wanted = {}) {
  const all = scrape.get(name) ?? [];
  return all.filter(({ labels }) => Object.entries(wanted).every(([label, value]) => labels[label] === value));
}

/** @param {Scrape} scrape @param {string} name @param {Record<string, string>} [wanted] @returns {number} */
export function total(scrape, name, wanted = {}) {
  return samples(scrape, name, wanted).reduce((sum, { value }) => sum + (Number.isFinite(value) ? value : 0), 0);
}

/**
 * How much a counter grew. After a restart it begins at 0 again, and its value is what it grew.
 * @param {Scrape} before @param {Scrape} after @param {string} name @param {Record<string, string>} [wanted]
 */
export function growth(before, after, name, wanted = {}) {
  const [from, to] = [total(before, name, wanted), total(after, name, wanted)];
  return to >= from ? to - from : to;
}

/** @param {Scrape} scrape @param {string} name @param {string} label @returns {string[]} the label's values */
export function valuesOf(scrape, name, label) {
  return [...new Set(samples(scrape, name).map(({ labels }) => labels[label]))].sort();
}

/**
 * A quantile of what a histogram took up between two scrapes, by linear interpolation in its bucket.
 * @param {Scrape} before @param {Scrape} after @param {string} name without `_bucket` @param {number} quantile
 * @param {Record<string, string>} [wanted]
 * @returns {number | null} null where it took up nothing
 */
export function quantileOf(before, after, name, quantile, wanted = {}) {
  const bounds = [...new Set(samples(after, `${name}_bucket`, wanted).map(({ labels }) => labels.le))];
  const counts = bounds
    .map((le) => ({ bound: le === "+Inf" ? Infinity : Number(le), count: growth(before, after, `${name}_bucket`, { ...wanted, le }) }))
    .sort((a, b) => a.bound - b.bound);
  const all = counts.at(-1)?.count ?? 0;
  if (!all) return null;
  const rank = quantile * all;
  const at = counts.findIndex(({ count }) => count >= rank);
  const [low, below] = at > 0 ? [counts[at - 1].bound, counts[at - 1].count] : [0, 0];
  const { bound, count } = counts[at];
  if (bound === Infinity) return low;
  return count > below ? low + ((bound - low) * (rank - below)) / (count - below) : bound;
}

/**
 * @param {Scrape} before @param {Scrape} after @param {string} name @param {Record<string, string>} [wanted]
 * @returns {number | null} the mean of what a histogram took up
 */
export function meanOf(before, after, name, wanted = {}) {
  const count = growth(before, after, `${name}_count`, wanted);
  return count ? growth(before, after, `${name}_sum`, wanted) / count : null;
}
