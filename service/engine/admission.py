"""Decides which requests are let into the queue, and counts how much is asked for, for the autoscaling."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from headroom.service.engine.queue import FairQueue
from headroom.service.engine.sizing import TokenRate
from headroom.service.errors import QueueFull

WINDOW_S = 10.0
"""Seconds over which the load is averaged."""

TOO_LATE = "The queue is too long for this request's deadline; try again later."


@dataclass
class Admission:
    """Refuses a request if too much work is ahead of it, or if the queue would hold too much.

    max_queue_tokens: limit on the queued tokens that would be served before a request.
    max_request_tokens: tokens of the largest request; it adds to the limit on all that waits. A larger
        request raises it, such as one to a variant with a longer window.
    max_wait_s: limit on the time that the work ahead of a request takes, at the measured rate.
    """

    queue: FairQueue
    rate: TokenRate
    max_queue_tokens: int
    max_request_tokens: int
    max_wait_s: float

    def check(self, tokens: int, *, in_flight_tokens: int, seconds_left: float) -> None:
        """Raise QueueFull if a request with this number of tokens finds no room, or cannot be done in time.

        An empty queue takes any one request.

        seconds_left: until its deadline.
        """
        waiting = self.queue.tokens
        self.max_request_tokens = max(self.max_request_tokens, tokens)
        if not waiting:
            return

        def refuse_above(limit: float, number: float, message: str | None = None) -> None:
            if number > limit:
                excess = min(number - limit, waiting)
                raise QueueFull(self.rate.retry_after(excess), message=message)

        queued_ahead = self.queue.ahead_of(tokens)
        refuse_above(self.max_queue_tokens, queued_ahead)
        refuse_above(2 * self.max_queue_tokens + self.max_request_tokens, waiting + tokens)
        rate = self.rate.per_second
        if rate is not None:
            ahead = in_flight_tokens + queued_ahead
            refuse_above(self.max_wait_s * rate, ahead)
            if seconds_left > 0:  # a late request gets 504 from the scheduler, not 429
                refuse_above(seconds_left * rate, ahead + tokens, TOO_LATE)

    def is_in_time(self, tokens: int, *, in_flight_tokens: int, seconds_left: float) -> bool:
        """Return whether this number of tokens would be done in the seconds left, at the measured rate.

        `check` refuses a request; this leaves out the later stage of one that was let in.
        """
        rate = self.rate.per_second
        if rate is None:
            return seconds_left > 0
        return in_flight_tokens + self.queue.ahead_of(tokens) + tokens <= seconds_left * rate


class Mark(NamedTuple):
    """The counts up to a time. asked_s: seconds of computing; host_s: processor seconds."""

    time: float
    asked_s: float
    host_s: float


class Load:
    """The work that callers ask a replica for, in seconds of computing per second.

    A request counts when it comes, with its tokens over the measured rate, and also if it is refused.
    Admission keeps the queue short, so the queue cannot say how much more is asked for than a replica can do.
    The load can: above 1, the rest is refused.

    rate: of the replica's device. clock: seconds that never go backwards.
    host_clock: processor seconds of this process. On a GPU, one interpreter prepares and answers all requests
        and may be busy before the device is; the busier of the two counts. None on a CPU, where the network
        itself takes them.
    value: the mean of the last WINDOW_S, as of the last `update`.
    """

    def __init__(
        self,
        rate: TokenRate,
        clock: Callable[[], float],
        host_clock: Callable[[], float] | None = None,
    ) -> None:
        self.value = 0.0
        self._rate = rate
        self._clock = clock
        self._host_clock = host_clock
        self._asked_s = 0.0
        self._marks = deque([self._mark()])

    def ask(self, tokens: int) -> None:
        """Count a request of this many tokens, let in or refused; not before the rate is known."""
        if self._rate.per_second:
            self._asked_s += tokens / self._rate.per_second

    def ask_seconds(self, seconds: float) -> None:
        """Count a request that takes this many seconds."""
        self._asked_s += seconds

    def update(self) -> float:
        """Return the load, and keep it as `value`. Call it about twice a second."""
        latest = self._mark()
        self._marks.append(latest)
        while latest.time - self._marks[1].time >= WINDOW_S:
            self._marks.popleft()
        first = self._marks[0]
        busy_s = max(latest.asked_s - first.asked_s, latest.host_s - first.host_s)
        self.value = busy_s / max(WINDOW_S, latest.time - first.time)
        return self.value

    def _mark(self) -> Mark:
        host_s = 0.0 if self._host_clock is None else self._host_clock()
        return Mark(self._clock(), self._asked_s, host_s)
