"""Lets what arrives in a rush gather, and handles it together, as network cards coalesce interrupts.

Forward passes read megabytes of weights, so between two requests the processor's caches lose the code and the
data that a request needs: handled alone it takes some three times as long as right after another one
(docs/decisions/009-the-way-of-a-request.md). While all slots are busy and requests queue up, nothing that
arrives could start before a pass ends. Until then the event loop's thread blocks, and leaves its core to the
passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

RUSH_REQUESTS = 8
"""A rush has at least this many open requests. With fewer, a short request that arrives beside long ones must
still make the next batch, so the loop does not block."""

MAX_BLOCK_S = 0.02
"""Longest time that the loop blocks: refusals, health checks and cancelled requests wait for it, too."""

SETTLING_TURNS = 6
"""Turns of the event loop between two blocks: enough for a request to get from its socket into the queue, and
for a result to get back to its socket."""


class Coalescing:
    """Blocks the event loop again and again until the rush is over.

    is_rush: whether whatever arrives now has to wait for a pass to end.
    wait_for_pass: blocks its thread until a forward pass ends, for at most so many seconds. None: the loop
        never blocks.
    """

    def __init__(self, is_rush: Callable[[], bool], wait_for_pass: Callable[[float], object] | None) -> None:
        self._is_rush = is_rush
        self._wait_for_pass = wait_for_pass
        self._going = False

    def begin(self) -> None:
        """If there is a rush, block the loop again and again until it is over.

        Before each block, the loop takes some turns to do what is ready.
        """
        if self._wait_for_pass is not None and not self._going and self._is_rush():
            self._going = True
            self._turn(self._wait_for_pass, SETTLING_TURNS)

    def _turn(self, wait_for_pass: Callable[[float], object], turns_left: int) -> None:
        if not turns_left:
            if not self._is_rush():
                self._going = False
                return
            wait_for_pass(MAX_BLOCK_S)
            turns_left = SETTLING_TURNS
        asyncio.get_running_loop().call_soon(self._turn, wait_for_pass, turns_left - 1)
