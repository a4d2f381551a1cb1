"""A request on its way through the queue: its deadline, and its rows, from their tokens to their results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from service.engine.queue import LanePart
    from service.engine.sharing import Share
    from service.observe.tracing import RequestTrace


class Deadline(NamedTuple):
    """The times when a request came and when its answer is no longer wanted, in seconds of `time.monotonic`.

    received: its body was read. Latencies count from here: a slow upload is no fault of the service.
    expires: the server's timeout or the request's own `deadline_ms` after its arrival, whichever is sooner.
    """

    received: float
    expires: float

    def elapsed(self) -> float:
        """Return the seconds since the request was received."""
        return time.monotonic() - self.received

    def remaining(self) -> float:
        """Return the seconds until the answer is no longer wanted; below 0 afterwards."""
        return self.expires - time.monotonic()

    def is_close(self) -> bool:
        """Return whether less than 5 % of the time is left.

        A client that hangs up so late has most likely run into its own timeout.
        """
        return self.remaining() < 0.05 * (self.expires - self.received)


class Row:
    """One sequence to compute. What the network needs beyond this is in a subclass.

    tokens: its length, at least 1. lane: only rows of one lane share a batch.
    submission: what it was submitted with.
    result: what was computed, or an exception; None before.
    seconds: its part of the time of its forward pass.
    """

    __slots__ = ("lane", "result", "seconds", "submission", "tokens")

    submission: Submission

    def __init__(self, tokens: int, lane: Hashable) -> None:
        self.tokens = tokens
        self.lane = lane
        self.result: Any = None
        self.seconds = 0.0


class Submission:
    """Rows that were submitted together, for one waiter: those of a request, or of one stage of a cascade.

    It does not refer to its rows once they have left the queue: that would be a reference cycle, which stays
    until Python looks for cycles.

    since: when it was submitted. deadline: until when its batches must begin. tokens: of all its rows.
    unanswered: how many rows have no result yet.
    waiting_rows, waiting_tokens: the part of it that is still in the queue. share, parts: as the queue takes
        them.
    is_background: whether it runs only while nothing else wants the device.
    started: when its first batch began; None before.
    queue_s: seconds until its first batch began. inference_s: seconds from then to its last result.
    is_open: whether results are still owed.
    trace: told what becomes of it; None if it is not traced.
    """

    share: Share

    def __init__(
        self,
        rows: Sequence[Row],
        since: float = 0.0,
        deadline: float = inf,
        *,
        is_background: bool = False,
        trace: RequestTrace | None = None,
    ) -> None:
        self.since = since
        self.deadline = deadline
        self.is_background = is_background
        self.trace = trace
        self.unanswered = self.waiting_rows = len(rows)
        self.tokens = self.waiting_tokens = sum([row.tokens for row in rows])
        self.parts: list[LanePart] = []
        self.started: float | None = None
        self.queue_s = 0.0
        self.inference_s = 0.0
        self.is_open = True
        self._error: BaseException | None = None
        self._closed = asyncio.Event()

    def start(self, now: float) -> None:
        """Note that the first batch begins."""
        self.started = now
        self.queue_s = now - self.since
        if self.trace is not None:
            self.trace.begins(self.since, now)

    def close(self, now: float, error: BaseException | None = None) -> None:
        """Wake the waiter, with the results or with an error. Closing a second time has no effect."""
        if not self.is_open:
            return
        self.is_open = False
        self._error = error
        self._closed.set()
        if self.started is not None:
            self.inference_s = now - self.started
        if self.trace is not None:
            if self.started is None:
                self.trace.stage("queue", self.since, now)
            elif error is None:
                self.trace.ends(now)

    async def closed(self) -> None:
        """Wait until every row has its result. Raises the error that ended the request before that."""
        await self._closed.wait()
        if self._error is not None:
            raise self._error
