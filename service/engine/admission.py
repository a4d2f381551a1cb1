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
