"""One thread that reads texts for many requests in turns, and says when too much waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, TypeVar

from service.errors import QueueFull

T = TypeVar("T")

TURN_S = 0.01
"""After so many seconds, others get their turn; a single step may take longer."""

CHARS_PER_SECOND = 500_000.0
"""Limits how much text waits. It is the rate of new Chinese text, the slowest for a BERT tokenizer. What the
last requests took says nothing about the next ones, because known texts cost next to nothing."""


class Turns:
    """Runs work that comes in steps, on one thread, off the event loop.

    The next turn goes to the request that has had the thread for the shortest time so far, so a short request
    overtakes a long one, and equal ones take turns.

    max_wait_s: work is refused if what is ahead of it takes longer than this, at CHARS_PER_SECOND.
    clock: seconds that never go backwards.
    """

    def __init__(self, max_wait_s: float = inf, clock: Callable[[], float] = time.monotonic) -> None:
        self.chars = 0  # of the work that is not done
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._requests = 0
        self._is_taken = False
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._entries = count()

    async def run(self, steps: Generator[object, None, T], chars: int) -> T:
        """Run the steps to their end, and return what the generator returns.

        chars: about how many characters it reads.
        Raises QueueFull if too much is ahead of it; work that finds the thread free is never refused.
        """
        ahead = min(self.chars, self._requests * chars)  # nobody else gets more before it is done
        if (wait_s := ahead / CHARS_PER_SECOND) > self._max_wait_s:
            retry_after = min(60.0, max(1.0, wait_s))
            raise QueueFull(retry_after, message="Too much text waits to be read; try again later.")
        self.chars += chars
        self._requests += 1
        used_s = 0.0
        has_turn = False
        try:
            while True:
                self._is_taken = self._is_taken and not has_turn
                has_turn = False
                await self._turn(used_s)
                has_turn = True
                end, seconds = await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._steps, steps
                )
                used_s += seconds
                if end is not None:
                    result: T = end.value
                    return result
        finally:
            self.chars -= chars
            self._requests -= 1
            if has_turn:
                self._is_taken = False
                self._give_turn()

    def close(self) -> None:
        """End the thread after the turn in hand."""
        self._thread.shutdown(wait=False)

    def _steps(self, steps: Generator[object, None, Any]) -> tuple[StopIteration | None, float]:
        """Run steps for one turn. Return the generator's end, None if it goes on, and the seconds taken."""
        began = self._clock()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end, self._clock() - began
            if (seconds := self._clock() - began) >= TURN_S:
                return None, seconds

    async def _turn(self, used_s: float) -> None:
        """Wait for a turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (used_s, next(self._entries), turn))
        if not self._is_taken:
            self._give_turn()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came as it was cancelled
                self._is_taken = False
                self._give_turn()
            raise

    def _give_turn(self) -> None:
        """Give the free thread to who waits for it and has had it least."""
        while self._waiting and not self._is_taken:
            turn = heappop(self._waiting)[2]
            if not turn.done():  # cancelled
                turn.set_result(None)
                self._is_taken = True
