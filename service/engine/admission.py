"""Decides which requests are let into the queue."""

from dataclasses import dataclass

from headroom.service.engine.queue import FairQueue
from headroom.service.engine.sizing import TokenRate
from headroom.service.errors import QueueFull

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
        queued_ahead = self.queue.ahead_of(tokens)
        max_waiting = 2 * self.max_queue_tokens + self.max_request_tokens
        excesses: list[tuple[float, str | None]] = [  # tokens over each limit, and the message
            (queued_ahead - self.max_queue_tokens, None),
            (waiting + tokens - max_waiting, None),
        ]
        rate = self.rate.per_second
        if rate is not None:
            ahead = in_flight_tokens + queued_ahead
            excesses.append((ahead - self.max_wait_s * rate, None))
            if seconds_left > 0:  # a late request gets 504 from the scheduler, not 429
                excesses.append((ahead + tokens - seconds_left * rate, TOO_LATE))
        for excess, message in excesses:
            if excess > 0:
                raise QueueFull(self.rate.retry_after(min(excess, waiting)), message=message)

    def is_in_time(self, tokens: int, *, in_flight_tokens: int, seconds_left: float) -> bool:
        """Return whether this number of tokens would be done in the seconds left, at the measured rate.

        `check` refuses a request; this leaves out the later stage of one that was let in.
        """
        rate = self.rate.per_second
        if rate is None:
            return seconds_left > 0
        return in_flight_tokens + self.queue.ahead_of(tokens) + tokens <= seconds_left * rate
