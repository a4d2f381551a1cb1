"""The claim that a request has on its results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from service.engine.queued import Item, QueuedRequest
from service.engine.trail import Trail

P = TypeVar("P")
R = TypeVar("R")


class Round(NamedTuple, Generic[P]):
    """Items of a request that enter the queue once all its earlier items have results.

    items: none if the request is done. later_tokens: the tokens, at most, of the rounds after this one.
    """

    items: Sequence[Item[P]]
    later_tokens: int = 0


NextRound = Callable[[Sequence[Any]], Round[Any]]
"""Makes the next round of all results so far, exceptions included. It runs on the event loop."""


class Ticket(Generic[R]):
    """A request's claim on its results, for one waiter.

    The waiter uses `result`, `cancel` and the two times; the scheduler uses the rest.

    queue_s: seconds of waiting, summed over the rounds: each from entering the queue to the start of its
        first batch.
    inference_s: seconds of computing, summed over the rounds that are done: each from the start of its first
        batch to its last result.
    is_open: whether results are still owed.
    is_cut_short: whether the last round was left out because it would have been too late.
    results: one per item, in the order of the items; None for an item without a result yet.
    unanswered: how many items have no result yet. answered: how many results are of earlier rounds.
    started: when the round's first batch began; None before.
    next_round: makes the round after this one; None if there is none.
    queued: the request in the queue; None if it never entered, or once the ticket is closed.
    trail: told what becomes of the request; None if it is not traced.
    """

    def __init__(self, items: int, submitted: float, on_cancel: Callable[[Ticket[R]], None]) -> None:
        self.queue_s = 0.0
        self.inference_s = 0.0
        self.is_open = True
        self.is_cut_short = False
        self.results: list[Any] = [None] * items
        self.unanswered = items
        self.answered = 0
        self.submitted = submitted
        self.started: float | None = None
        self.next_round: NextRound | None = None
        self.queued: QueuedRequest[Any, Ticket[R]] | None = None
        self.trail: Trail | None = None
        self._on_cancel = on_cancel
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def result(self) -> list[R | Exception]:
        """Return the results in the order of the items, with an exception in place of each that failed.

        Raises DeadlineExceeded if work would begin after the deadline, Draining if the
        scheduler was stopped first, CancelledError after `cancel`. If the waiter is cancelled, so is the
        ticket.
        """
        try:
            await self._closed
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.results

    def cancel(self) -> None:
        """Give up: work that has not begun never runs, and its room in the queue is free at once."""
        self._on_cancel(self)

    def start(self, now: float) -> None:
        """Note that the round's first batch begins."""
        self.started = now
        self.queue_s += now - self.submitted
        if self.trail is not None:
            self.trail.begins(self.submitted, now)

    def end_round(self, now: float) -> None:
        """Note that the round's results are all there."""
        if self.started is not None:
            self.inference_s += now - self.started
        if self.trail is not None:
            self.trail.ends(now)

    def begin_round(self, items: int, now: float) -> None:
        """Make room for the results of another round, which enters the queue now."""
        self.answered = len(self.results)
        self.results += [None] * items
        self.unanswered = items
        self.submitted = now
        self.started = None

    def close(self, error: BaseException | None = None) -> None:
        """Wake the waiter, with the results or with an error. Closing a second time has no effect."""
        self.is_open = False
        if self._closed.done():  # it was closed before, or its waiter was cancelled
            return
        if error is None:
            self._closed.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            self._closed.cancel()
        else:
            self._closed.set_exception(error)
            self._closed.exception()  # marks it as seen: the loop must not log it if nobody waits
