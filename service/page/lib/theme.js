/** Light or dark: the system's choice, or the person's, which the browser keeps. */

import { load, save } from "./storage.js";
import { subscribe, update } from "./store.js";

const THEME = "headroom-theme";
const CHOICES = /** @type {const} */ (["system", "light", "dark"]);

/** Applies the kept choice, and every later one. */
export function rememberTheme() {
  subscribe((state, before) => {
    if (state.theme !== before.theme) apply(state.theme);
  });
  const theme = CHOICES.find((choice) => choice === load("localStorage", THEME));
  if (theme && theme !== "system") update({ theme });
}

/** @param {typeof CHOICES[number]} theme @returns {typeof CHOICES[number]} */
export function nextTheme(theme) {
  return CHOICES[(CHOICES.indexOf(theme) + 1) % CHOICES.length];
}

/** @param {typeof CHOICES[number]} theme */
function apply(theme) {
  save("localStorage", THEME, theme);
  document.documentElement.style.colorScheme = theme === "system" ? "" : theme;
}

/** @returns {boolean} whether dark colours are shown */
export function isDark() {
  const { colorScheme } = getComputedStyle(document.documentElement);
  return colorScheme === "dark" || (colorScheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}

/** @returns {boolean} whether the person asked for less movement */
export function prefersStillness() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
