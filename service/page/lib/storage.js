/** Values that the browser stores. If it may store none, its storage throws, and values last as long as the page. */

/** @type {Map<string, string | null>} */
const values = new Map();

/** @param {"localStorage" | "sessionStorage"} where @param {string} name @returns {string | null} */
export function load(where, name) {
  try {
    return window[where].getItem(name);
  } catch {
    return values.get(name) ?? null;
  }
}

/** @param {"localStorage" | "sessionStorage"} where @param {string} name @param {string | null} value null: nothing */
export function save(where, name, value) {
  try {
    if (value === null) window[where].removeItem(name);
    else window[where].setItem(name, value);
  } catch {
    values.set(name, value);
  }
}
