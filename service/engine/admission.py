"""Decides which requests are let into the queue."""

from __future__ import annotations

from math import inf
from typing import Any

from service.engine.fair_queue import FairQueue
from service.engine.queued import QueuedRequest
from service.engine.rate import TokenRate
from service.errors import QueueFull

TOO_LATE = "The queue is too long for this request's deadline; try again later."


class Admission:
    """Refuses a request if too much work is ahead of it, or if the queue would hold too much.

    max_queue_tokens: limit on the queued tokens that would be served before a request.
    max_request_tokens: tokens of the largest request; it adds to the limit on all that waits. A larger
        request raises it, such as one to a variant with a longer window.
    max_wait_s: limit on the time that the work ahead of a request takes, at the measured rate.
    """

    def __init__(
        self,
        queue: FairQueue[Any, Any],
        rate: TokenRate,
        *,
        max_queue_tokens: int,
        max_request_tokens: int,
        max_wait_s: float,
    ) -> None:
        self._queue = queue
        self._rate = rate
        self._max_queue_tokens = max_queue_tokens
        self._max_request_tokens = max_request_tokens
        self._max_wait_s = max_wait_s

    def check(
        self,
        tokens: int,
        *,
        later_tokens: int = 0,
        in_flight_tokens: int,
        now: float,
        deadline: float | None,
    ) -> None:
        """Raise QueueFull if a request of so many tokens finds no room, or cannot be done in time.

        An empty queue takes any one request.

        later_tokens: the tokens of its later rounds, at most. A larger request has more served before it, and
            for that they count. They need no room now, because they come when the first round has left the
            queue. They cannot make the request late, because it can be answered without them (`can_meet`).
        """
        waiting = self._queue.tokens
        self._max_request_tokens = max(self._max_request_tokens, tokens)
        if not waiting:
            return
        queued_ahead = self._queue.ahead_of(tokens + later_tokens)
        ahead = in_flight_tokens + queued_ahead
        excesses: list[tuple[float, str | None]] = [  # tokens over each limit, and the message
            (queued_ahead - self._max_queue_tokens, None),
            (waiting + tokens - 2 * self._max_queue_tokens - self._max_request_tokens, None),
        ]
        if (rate := self._rate.per_second) is not None:
            excesses.append((ahead - self._max_wait_s * rate, None))
            if deadline is not None and deadline > now:
                excesses.append((ahead + tokens - (deadline - now) * rate, TOO_LATE))
        for excess, message in excesses:
            if excess > 0:
                raise QueueFull(self._rate.retry_after(min(excess, waiting)), message=message)

    def can_meet(
        self,
        request: QueuedRequest[Any, Any],
        tokens: int,
        *,
        in_flight_tokens: int,
        now: float,
    ) -> bool:
        """Return whether another round of so many tokens would be done by the request's deadline."""
        rate = self._rate.per_second
        if rate is None or request.deadline == inf:
            return request.deadline > now
        room = (request.deadline - now) * rate - in_flight_tokens - tokens
        return room >= self._queue.tokens or room >= self._queue.ahead_of_request(request)
