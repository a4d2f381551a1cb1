/** The frame around the views: name, ways to the views, what is loaded, theme and key. */

import { useEffect, useRef } from "./vendor/hooks.js";
import { Attention } from "./attention/attention.js";
import { Experiments } from "./experiments/experiments.js";
import { addressOf, VIEWS } from "./lib/address.js";
import { storeKey, storedKey } from "./lib/api.js";
import { loadFacts } from "./lib/facts.js";
import { html } from "./lib/html.js";
import { current, update, useStore } from "./lib/store.js";
import { nextTheme } from "./lib/theme.js";
import { Trouble } from "./lib/trouble.js";
import { Live } from "./live/live.js";
import { Playground } from "./playground/playground.js";

const TITLES = /** @type {Record<string, string>} */ ({
  playground: "Playground",
  attention: "Attention",
  experiments: "Experiments",
  live: "Live",
});
const PANELS = /** @type {Record<string, unknown>} */ ({
  playground: Playground,
  attention: Attention,
  experiments: Experiments,
  live: Live,
});

export function Shell() {
  const state = useStore();
  useEffect(() => {
    document.title = `${TITLES[state.view]} · headroom`;
  }, [state.view]);
  return html`
    <header class="top">
      <a class="brand" href=${addressOf({ ...state, view: "playground" })} onClick=${to("playground")}>headroom</a>
      <nav aria-label="Views">
        ${VIEWS.map(
          (view) => html`
            <a href=${addressOf({ ...state, view })} aria-current=${view === state.view ? "page" : null} onClick=${to(view)}>
              ${TITLES[view]}
            </a>`,
        )}
      </nav>
      <${ModelName} facts=${state.facts} problem=${state.factsProblem} />
      <a class="quiet" href="docs">API</a>
      <${ThemeSwitch} theme=${state.theme} />
    </header>
    <main>
      ${state.view === "experiments" ? null : html`<h1 class="unseen">${TITLES[state.view]}</h1>`}
      ${state.factsProblem && state.factsProblem.status !== 401
        ? html`<${Trouble} problem=${state.factsProblem} retry=${loadFacts} />`
        : state.key.needed ? html`<${KeyNeeded} />` : null}
      ${state.facts && state.columns.length ? html`<${PANELS[state.view]} state=${state} />` : null}
    </main>
    <${KeyDialog} wanted=${state.key} />`;
}

/** @param {string} view @returns {(event: MouseEvent) => void} */
function to(view) {
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return; // the browser opens a tab or a window
    event.preventDefault();
    update({ view });
  };
}

/** @param {{facts: import("./lib/types.js").Facts | null, problem: import("./lib/types.js").Problem | null}} props */
function ModelName({ facts, problem }) {
  if (!facts) return html`<p class="model">${problem ? "" : "loading…"}</p>`;
  const { name, layers, heads, device, dtype } = facts.model;
  return html`
    <p class="model" title=${`${device}, ${dtype}`}>
      <b>${name}</b> <span>${layers} layers × ${heads} heads</span>
    </p>`;
}

/** What stays on the page if the dialog is left without a key. */
function KeyNeeded() {
  const ask = () => update({ key: { ...current().key, asking: true } });
  return html`<p class="empty">This service asks for an API key. <button onClick=${ask}>Enter a key</button></p>`;
}

/** @param {{theme: "system" | "light" | "dark"}} props */
function ThemeSwitch({ theme }) {
  const text = { system: "Auto", light: "Light", dark: "Dark" }[theme];
  return html`
    <button class="quiet theme" onClick=${() => update({ theme: nextTheme(theme) })}
      aria-label=${`Colours: ${text}. Change`}>${text}</button>`;
}

/** @param {{wanted: import("./lib/types.js").State["key"]}} props */
function KeyDialog({ wanted }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const before = useRef(/** @type {string | null} */ (null));
  useEffect(() => {
    if (wanted.asking && !dialog.current?.open) {
      before.current = storedKey();
      dialog.current?.querySelector("form")?.reset(); // else a key would be typed behind the last one
      dialog.current?.showModal();
    }
    if (!wanted.asking) dialog.current?.close();
  }, [wanted.asking]);
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    storeKey(new FormData(form).get("key")?.toString().trim() || null);
    form.reset();
    update({ key: { ...current().key, wrong: false } });
    loadFacts(); // closes the dialog if the key is right, and makes everything that waits ask again
  };
  const closed = () => {
    // The event comes late: by then another answer may have opened the dialog again.
    if (dialog.current?.open) return;
    const { asking, admin, needed } = current().key; // still asking: a person left it
    update({ key: { asking: false, wrong: false, admin: false, needed } });
    if (asking && admin && storedKey() !== before.current) {
      storeKey(before.current); // an admin key was wanted, and the key before it did for the rest of the page
      loadFacts();
    }
  };
  return html`
    <dialog ref=${dialog} class="key" aria-labelledby="key-title" onClose=${closed}>
      <form onSubmit=${submit}>
        <h2 id="key-title">${wanted.admin ? "An admin key, please" : "This service asks for an API key"}</h2>
        <p>The key stays in this tab and goes to this service only.</p>
        <label for="key">API key</label>
        <input id="key" name="key" type="password" autocomplete="current-password" required
          pattern="\\s*[A-Za-z0-9._~+\\/\\-]+=*\\s*" title="A key holds A-Z a-z 0-9 . _ ~ + / - and may end in =" />
        <p class="wrong" role="alert">
          ${wanted.wrong && storedKey() ? "This key is not one that the service takes for this." : ""}
        </p>
        <p class="bottom">
          <button class="strong">Use this key</button>
          <button type="button" onClick=${() => dialog.current?.close()}>Cancel</button>
        </p>
      </form>
    </dialog>`;
}
