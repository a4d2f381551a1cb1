/** What the tabs of this page in this browser had scored of late: the live view leaves it out of the traffic. */

/** @typedef {{variant: string, pairs: number, seconds: number}} ScoredPairs seconds: from admission to result, as each pair's */
/** @typedef {{time: number, pairs: ScoredPairs[]}} PageRequest time: seconds since 1970 */

const MAX_REQUESTS = 500;
const TAB = `${Math.random()} `;
const ALL = "all";

/** @type {Map<string, PageRequest>} by tab and number, oldest first */
const requests = new Map();
let number = 0;

const tabs = new BroadcastChannel(`headroom ${location.pathname}`);
tabs.addEventListener("message", ({ data }) => {
  if (data === ALL) tabs.postMessage([...requests].filter(([id]) => id.startsWith(TAB)));
  else for (const [id, request] of data) remember(id, request);
});
tabs.postMessage(ALL); // the tabs that are open answer

/** @param {any} body @param {any} reply of a request that was scored; masks come before variants */
export function noteRequest(body, reply) {
  const masks = body.masks?.length ?? (body.head_mask === undefined ? 0 : 1);
  const columns = reply.columns ?? (reply.results ? [reply] : []);
  const seconds = (reply.timing_ms.queue + reply.timing_ms.inference) / 1000;
  const pairs = columns.map((/** @type {any} */ one, /** @type {number} */ i) => ({
    variant: i < masks ? "custom" : one.variant,
    pairs: one.results.length,
    seconds,
  }));
  const id = `${TAB}${number++}`;
  const request = { time: Date.now() / 1000, pairs };
  remember(id, request);
  tabs.postMessage([[id, request]]);
}

/** @param {string} id @param {PageRequest} request */
function remember(id, request) {
  requests.set(id, request);
  if (requests.size > MAX_REQUESTS) requests.delete(/** @type {string} */ (requests.keys().next().value));
}

/** @param {number} from @param {number} to seconds since 1970 @returns {PageRequest[]} those after `from`, until `to` */
export function requestsBetween(from, to) {
  return [...requests.values()].filter(({ time }) => time > from && time <= to);
}
