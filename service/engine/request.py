"""A request on its way through the queue: its deadline, and its rows, from their tokens to their results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


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


class Prefix(Hashable, Protocol):
    """The first tokens of several rows; equal ones compare equal."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""
        ...


@dataclass(slots=True, eq=False)
class Row:
    """One sequence to compute. What the network needs beyond this is in a subclass.

    tokens: its length, at least 1. lane: only rows of one lane share a batch.
    prefix: its first tokens, which a batch computes once for all rows that have the same; None if none has.
    submission: what it was submitted with.
    result: what was computed, or an exception; None before.
    seconds: its part of the time of its forward pass.
    """

    tokens: int
    lane: Hashable
    prefix: Prefix | None = field(default=None, init=False)
    submission: Submission = field(init=False)
    result: Any = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)


def added_tokens(rows: Sequence[Row]) -> list[int]:
    """Return how many tokens each row adds to what one batch of all these rows computes."""
    prefixes: set[Prefix] = set()
    added = []
    for row in rows:
        tokens = row.tokens
        if row.prefix is not None:
            if row.prefix in prefixes:
                tokens -= row.prefix.tokens
            prefixes.add(row.prefix)
        added.append(tokens)
    return added


class Submission:
    """Rows that were submitted together, for one waiter: those of a request, or of one stage of a cascade.

    It does not refer to its rows once they have left the queue: that would be a reference cycle, which stays
    until Python looks for cycles.

    since: when it was submitted. deadline: until when its batches must begin. tokens: what one
        batch of all its rows computes.
    unanswered: how many rows have no result yet.
    waiting_rows, waiting_tokens: the part of it that is still in the queue. finish: when it would be done if
        all shared the device equally, as the queue computes it.
    is_background: whether it runs only while nothing else wants the device.
    started: when its first batch began; None before.
    queue_s: seconds until its first batch began. inference_s: seconds from then to its last result.
    is_open: whether results are still owed. closed: set when they no longer are. error: why they are not
        there; None if they are.
    """

    finish: float

    def __init__(
        self,
        rows: Sequence[Row],
        since: float,
        deadline: float,
        *,
        is_background: bool,
    ) -> None:
        self.since = since
        self.deadline = deadline
        self.is_background = is_background
        self.unanswered = self.waiting_rows = len(rows)
        self.tokens = self.waiting_tokens = sum(added_tokens(rows))
        self.started: float | None = None
        self.queue_s = 0.0
        self.inference_s = 0.0
        self.is_open = True
        self.closed = asyncio.Event()
        self.error: BaseException | None = None
