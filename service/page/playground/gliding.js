/** Rows glide to their new places, unless the person prefers less motion. */

import { useLayoutEffect, useRef } from "../vendor/hooks.js";
import { prefersStillness } from "../lib/theme.js";

const MILLISECONDS = 320;
const MAX_ROWS = 60;

/**
 * @param {number[]} order the rows' keys from top to bottom
 * @returns {{current: HTMLElement | null}} for the element around the rows, which carry `data-title`
 */
export function useGliding(order) {
  const body = useRef(/** @type {HTMLElement | null} */ (null));
  const places = useRef(/** @type {Map<string, number>} */ (new Map()));
  useLayoutEffect(() => {
    const rows = /** @type {HTMLElement[]} */ ([...(body.current?.children ?? [])]);
    const before = places.current;
    places.current = new Map(rows.map((row) => [String(row.dataset.title), row.offsetTop]));
    if (prefersStillness() || rows.length > MAX_ROWS) return;
    for (const row of rows) {
      const distance = (before.get(String(row.dataset.title)) ?? row.offsetTop) - row.offsetTop;
      if (distance) {
        row.animate([{ transform: `translateY(${distance}px)` }, { transform: "none" }], {
          duration: MILLISECONDS,
          easing: "cubic-bezier(0.2, 0.7, 0.2, 1)",
        });
      }
    }
  }, [order.join()]);
  return body;
}
