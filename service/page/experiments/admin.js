/** What happens if an action needs another key. */

import { needsKey } from "../lib/api.js";
import { current, update } from "../lib/store.js";

/** @param {import("../lib/types.js").Problem} problem opens the key dialog if a key with the admin role would help */
export async function askForAdmin(problem) {
  // If the service has no keys, no key would help. A stored one may be left from before a restart.
  if (problem.status === 403 && (await needsKey())) update({ key: { ...current().key, asking: true, wrong: false, admin: true } });
}
