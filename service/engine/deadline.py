"""Until when a request's answer is wanted: stamped when the request arrives, and passed down with it."""

from __future__ import annotations

import time
from typing import NamedTuple


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
