/** What the tabs of this page in this browser had scored of late: the live view leaves it out of the traffic. */

/**
 * @typedef {{variant: string, pairs: number, seconds: number | null}} ScoredPairs seconds: from admission to result, as each
 *   pair's; null: not known, or they took none, because their scores were kept
 */
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
  const id = `${TAB}${number++}`;
  const request = { time: Date.now() / 1000, pairs: scoredPairs(body, reply) };
  remember(id, request);
  tabs.postMessage([[id, request]]);
}

/** @param {any} body @param {any} reply @returns {ScoredPairs[]} by column; the many steps of a condensed query have times of their own */
function scoredPairs(body, reply) {
  const masks = body.masks?.length ?? (body.head_mask === undefined ? 0 : 1);
  const variantOf = (/** @type {any} */ one, /** @type {number} */ i) => (i < masks ? "custom" : one.variant);
  if (reply.path) return [{ variant: variantOf(reply, 0), pairs: reply.usage.pairs, seconds: null }];
  const { queue, inference } = reply.timing_ms;
  const seconds = inference === 0 ? null : (queue + inference) / 1000;
  const columns = reply.columns ?? (reply.results ? [reply] : []);
  return columns.map((/** @type {any} */ one, /** @type {number} */ i) => (
    { variant: variantOf(one, i), pairs: one.results.length, seconds }));
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
