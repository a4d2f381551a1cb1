/** Polls while it is shown: the next call comes after an answer, also one with a 5xx, so never two at once. */

import { useEffect, useState } from "../vendor/hooks.js";
import { asProblem } from "./api.js";
import { useStore } from "./store.js";

/** @typedef {import("./types.js").Problem} Problem */

/**
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} ask @param {number} milliseconds between an answer and the next call
 * @param {unknown[]} inputs a change of these begins anew
 * @returns {{value: T | null, problem: Problem | null, refresh: () => void}} the last answer; `refresh` asks at once
 */
export function usePolling(ask, milliseconds, inputs) {
  const [value, setValue] = useState(/** @type {T | null} */ (null));
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  const [turn, setTurn] = useState(0);
  const { facts } = useStore(); // a new key loads the facts again
  useEffect(() => setValue(null), inputs);
  useEffect(() => {
    const controller = new AbortController();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let waiting;
    const step = async () => {
      let wait = milliseconds;
      try {
        setValue(await ask(controller.signal));
        if (!controller.signal.aborted) setProblem(null);
      } catch (error) {
        if (controller.signal.aborted) return;
        const found = asProblem(error);
        setProblem(found);
        if (found.status === 401 || (found.retryAt === null && found.status < 500)) return;
        wait = Math.max(wait, (found.retryAt ?? 0) - Date.now());
      }
      if (!controller.signal.aborted) waiting = setTimeout(step, wait);
    };
    step();
    return () => {
      controller.abort();
      clearTimeout(waiting);
    };
  }, [...inputs, turn, facts]);
  return { value, problem, refresh: () => setTurn(turn + 1) };
}
