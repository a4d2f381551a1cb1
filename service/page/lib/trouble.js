/** Errors as the page shows them: what was wrong, and when the page tries again by itself. */

import { useEffect, useState } from "../vendor/hooks.js";
import { labelOf, LETTERS } from "./columns.js";
import { html } from "./html.js";

/** @typedef {import("./types.js").Problem} Problem */

/**
 * @param {{problem: Problem, retry?: () => void, automatic?: boolean}} props
 * `retry` is called by a button, and if `automatic` when the service said to come back
 */
export function Trouble({ problem, retry, automatic = true }) {
  const seconds = useSecondsUntil(problem.retryAt);
  useEffect(() => {
    if (automatic && retry && problem.retryAt && seconds === 0) retry();
  }, [seconds, problem]);
  return html`
    <div class="trouble">
      <span role="alert">${problem.message}</span>
      ${seconds > 0 ? html`<span class="soft">Trying again in ${seconds} s.</span>` : null}
      ${retry ? html`<button onClick=${retry}>Try now</button>` : null}
    </div>`;
}

/** @param {number | null} time milliseconds since 1970 @returns {number} whole seconds left */
function useSecondsUntil(time) {
  const left = () => (time ? Math.max(0, Math.ceil((time - Date.now()) / 1000)) : 0);
  const [, show] = useState(left);
  useEffect(() => {
    if (!time) return undefined;
    const ticking = setInterval(() => show(left()), 250);
    return () => clearInterval(ticking);
  }, [time]);
  return left(); // and not the state, which is still that of the time before when a new one comes
}

/** Says which masks, of the address or of an earlier model, could not be read, until they are changed.
 * @param {{state: import("./types.js").State}} props */
export function UnreadableMasks({ state }) {
  return state.columns.map((one, i) => one.unreadable && html`
    <div class="trouble">
      <span role="alert">${one.unreadable}. Mask ${LETTERS[i]}${" "}
        shows ${labelOf(state, one)} instead.</span>
    </div>`);
}
