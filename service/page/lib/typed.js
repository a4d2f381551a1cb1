/** Text that a person is still typing. It stays in its field while the page is drawn anew. */

import { useEffect, useState } from "../vendor/hooks.js";
import { html } from "./html.js";

/**
 * @param {string} value what the field holds if nobody types; when it changes, what was typed is forgotten
 * @returns {{typed: {text: string, about: string} | null, type: (text: string) => void, forget: () => void}} typed: not
 *   taken yet; `about` is the value that it was typed over
 */
export function useTyped(value) {
  const [typed, setTyped] = useState(/** @type {{text: string, about: string} | null} */ (null));
  const forget = () => setTyped(null);
  useEffect(forget, [value]);
  return { typed, type: (text) => setTyped({ text, about: value }), forget };
}

/**
 * A field whose text is taken when a person leaves it or presses Enter.
 * @param {{value: string, take: (text: string) => void} & Record<string, unknown>} props with more attributes of the field
 */
export function TypedInput({ value, take, ...attributes }) {
  const { typed, type, forget } = useTyped(value);
  const change = (/** @type {Event} */ event) => {
    take(textOf(event));
    forget();
  };
  return html`<input ...${attributes} value=${typed?.text ?? value} onChange=${change}
    onInput=${(/** @type {Event} */ event) => type(textOf(event))} />`;
}

/** @param {Event} event */
function textOf(event) {
  return /** @type {HTMLInputElement} */ (event.target).value;
}
