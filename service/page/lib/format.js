/** Numbers and names as the page writes them; one that is missing is a dash. */

const MISSING = "–";

/** @param {number | null | undefined} value @param {number} digits */
export function signed(value, digits) {
  if (!isKnown(value)) return MISSING;
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return `±${text}`;
  return `${value > 0 ? "+" : "−"}${text}`;
}

/** @param {number | null | undefined} value a share @param {number} [digits] */
export function percent(value, digits = 0) {
  if (!isKnown(value)) return MISSING;
  return `${percentage(value).toFixed(digits)} %`;
}

/** @param {number} value a share that a person set, such as 0.995 @returns {string} with the digits that it has, five at most */
export function exact(value) {
  return `${percentage(value)} %`;
}

/** @param {number} value a share @returns {number} in per cent, without the noise of binary fractions */
export function percentage(value) {
  return Number((100 * value).toPrecision(5));
}

/** @param {number | null | undefined} value @param {number} [digits] significant ones */
export function short(value, digits = 3) {
  if (!isKnown(value)) return MISSING;
  const tiny = value !== 0 && Math.abs(value) < 1e-3;
  const text = tiny ? value.toExponential(1) : value.toLocaleString("en", { maximumSignificantDigits: digits });
  return text.replace(/^-/, "−");
}

/** @param {number | null | undefined} value @returns {value is number} */
export function isKnown(value) {
  return value !== null && value !== undefined && Number.isFinite(value);
}

/** @param {number} value */
export function count(value) {
  return value.toLocaleString("en");
}

/** @param {number} unixSeconds */
export function when(unixSeconds) {
  return new Date(1000 * unixSeconds).toISOString().slice(0, 16).replace("T", " ");
}

/** @param {string} role a study's name for it */
export function roleName(role) {
  return ROLES[role]?.name ?? role.replaceAll("_", " ");
}

/** @param {string} role @returns {string} the letter in the grid */
export function roleLetter(role) {
  return ROLES[role]?.letter ?? role.slice(0, 1).toUpperCase();
}

/**
 * A head has room for one letter. Most heads look at special tokens, so that role shows only where there is no other.
 *
 * @param {Record<string, number> | undefined} roles excess over chance by role
 * @param {{special?: boolean}} [options] special: whether that role shows at all
 * @returns {string} the letter of the role that is held most; empty without a role
 */
export function mainLetter(roles, { special = true } = {}) {
  const held = Object.entries(roles ?? {}).sort((one, other) => other[1] - one[1]);
  const [role] = held.find(([name]) => name !== "special") ?? (special ? held[0] : undefined) ?? [];
  return role ? roleLetter(role) : "";
}

/** @type {Record<string, {name: string, letter: string}>} */
const ROLES = {
  term_match: { name: "term match", letter: "T" },
  previous_word: { name: "previous word", letter: "P" },
  next_word: { name: "next word", letter: "N" },
  segmentation: { name: "word pieces", letter: "W" },
  special: { name: "special tokens", letter: "S" },
};

/** @param {number} grade from 0 @param {number} grades @returns {number} one of the five shades, 0 to 4 */
export function gradeShade(grade, grades) {
  return Math.round((4 * grade) / Math.max(1, grades - 1));
}

/** @param {string} text @param {number} count @returns {string} its first characters, none of them cut in half */
export function beginning(text, count) {
  return [...text].slice(0, count).join("");
}
