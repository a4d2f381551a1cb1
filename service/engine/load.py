"""How busy a replica would be with all that callers ask of it: what autoscaling counts."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headroom.service.engine.sizing import TokenRate

WINDOW_S = 10.0
"""Seconds over which the load is averaged."""


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
            self.ask_seconds(tokens / self._rate.per_second)

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
