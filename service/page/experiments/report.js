/** The service's report: the same HTML that can be saved as a file, without its title. */

import { useEffect, useRef } from "../vendor/hooks.js";
import { html } from "../lib/html.js";

// The service has escaped what is in it, and the page's policy runs no script that it might hold.
const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("report", { createHTML: (/** @type {string} */ markup) => markup });

/** @param {{markup: string}} props */
export function Report({ markup }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (!box.current) return;
    const main = markup.slice(markup.indexOf("<main>"), markup.indexOf("</main>")); // without the file's own styles
    const parsed = new DOMParser().parseFromString(policy ? policy.createHTML(main) : main, "text/html");
    parsed.querySelector("h1")?.remove();
    const opened = [...box.current.querySelectorAll("details")].map(({ open }) => open);
    box.current.replaceChildren(...(parsed.querySelector("main")?.childNodes ?? []));
    box.current.querySelectorAll("details").forEach((part, i) => (part.open = opened[i] ?? part.open));
  }, [markup]);
  return html`<div class="report" ref=${box}></div>`;
}
