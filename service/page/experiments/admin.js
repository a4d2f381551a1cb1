/** What happens if an action needs another key. */

import { useEffect, useState } from "../vendor/hooks.js";
import { isKeyless, needsKey } from "../lib/api.js";
import { html } from "../lib/html.js";
import { current, update } from "../lib/store.js";

/** @param {import("../lib/types.js").Problem} problem opens the key dialog if a key with the admin role would help */
export async function askForAdmin(problem) {
  // If the service has no keys, no key would help. A stored one may be left from before a restart.
  if (problem.status === 403 && (await needsKey())) update({ key: { ...current().key, asking: true, wrong: false, admin: true } });
}

/** @returns {boolean} whether the service has no keys, so that nobody can change an experiment over HTTP */
export function useKeyless() {
  const [keyless, setKeyless] = useState(false);
  useEffect(() => {
    isKeyless().then(setKeyless);
  }, []);
  return keyless;
}

/** What a service without keys needs before a person can start an experiment here. */
export function NeedsKeys() {
  return html`
    <p>To start one here, you need an API key with the admin role, and this service has no keys. Choose a key, and serve with it:</p>
    <pre class="needs-keys" tabindex="0">HEADROOM_API_KEYS='CHOOSE-A-KEY;role=admin' headroom serve</pre>`;
}
