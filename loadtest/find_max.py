"""Finds the highest rate that meets an objective, by bracketing, bisection and confirmation."""

import time
from collections.abc import Callable
from typing import Any

from headroom.loadtest import server
from headroom.loadtest.judging import Objective, client_limits, unreranked_share
from headroom.loadtest.plan import LoadTestError, Plan
from headroom.loadtest.running import Outcome

RESOLUTION = 0.05
CONFIRMATIONS = 2
MAX_PROBES = 40
MIN_REQUESTS = 20
"""Requests that a probe must send for a conclusion."""

SETTLE_S = 10.0
KEEPING_UP = 0.9
FILLING_S = 1.0
"""Seconds of a saturation probe until answers come steadily."""

CLIENT_IS_THE_LIMIT = "the client reached its limit before the server ({}); give it idle cores"


class Interrupted(LoadTestError):
    """A signal ended a probe before the search was over."""


Probe = Callable[[Plan], Outcome]
Say = Callable[[str], None]


class Search:
    """Probes rates of one plan against one objective."""

    def __init__(self, plan: Plan, objective: Objective, probe: Probe, say: Say) -> None:
        self._plan = plan
        self._objective = objective
        self._probe = probe
        self._say = say
        self._curve: list[dict[str, Any]] = []
        self._last: Outcome | None = None
        self._best: Outcome | None = None

    def find(self, first: float) -> tuple[dict[str, Any], Outcome]:
        """Search, beginning with `first` requests per second. Return the result and the run to report.

        rate: the highest rate that was confirmed; None if not even the lowest one held. lost_at: the lowest
        rate above it that was probed and did not hold. Each probe may be wrong by chance, so the two are no
        interval. curve: every probe. interrupted: whether the search was ended early; rate is then None.

        Raises LoadTestError if the client reaches its limit first, or if not even one probe was finished.
        """
        is_interrupted = False
        low = 0.0
        high: float | None = None
        try:
            low, high = self._confirmed(first)
        except Interrupted:
            if self._last is None:
                raise
            is_interrupted = True
            high = min((point["rate"] for point in self._curve if not point["held"]), default=None)
        confirmed = self._best if low else None
        reported = confirmed or self._last
        assert reported is not None
        curve = sorted(self._curve, key=lambda point: point["rate"])
        result = {"rate": low or None, "lost_at": high, "interrupted": is_interrupted, "curve": curve}
        return result, reported

    def _confirmed(self, first: float) -> tuple[float, float]:
        """Return the highest rate that was confirmed, or 0 if none was, and the lowest that did not hold."""
        low, high = self._bracket(first)
        while low and high / low > 1 + RESOLUTION and len(self._curve) < MAX_PROBES:
            middle = (low * high) ** 0.5
            if self._holds(middle, "bisection"):
                low = middle
            else:
                high = middle
        while low and not all(self._holds(low, "confirmation") for _ in range(CONFIRMATIONS)):
            self._best = None  # a probe of this rate that held
            high = low
            low = low / (1 + RESOLUTION)
            if not self._is_enough(low) or len(self._curve) >= MAX_PROBES:
                low = 0.0
        return low, high

    def _is_enough(self, rate: float) -> bool:
        return rate * self._plan.duration >= MIN_REQUESTS

    def _bracket(self, rate: float) -> tuple[float, float]:
        """Return a rate that holds, or 0 if none does, and one that does not, by doubling or halving."""
        if self._holds(rate, "bracketing"):
            for _ in range(20):
                rate *= 2
                if not self._holds(rate, "bracketing"):
                    return rate / 2, rate
            raise LoadTestError(f"even {rate:g} requests/s meet the objective; start with a higher --rate")
        while self._is_enough(rate / 2):
            rate /= 2
            if self._holds(rate, "bracketing"):
                return rate, rate * 2
        return 0.0, rate

    def _measured(self, rate: float) -> Outcome:
        """Run one probe, and an invalid one once more. Raises LoadTestError if that is invalid too."""
        for _ in range(2):
            settle(self._plan.url)
            outcome = self._probe(self._plan.changed(rate=rate, seed=self._plan.seed + len(self._curve) + 1))
            if outcome.interrupted:
                raise Interrupted("interrupted before the highest rate was found")
            spoiled = client_limits(outcome)
            # That the server kept all connections busy for too long is a result.
            if not spoiled or outcome.recorder.errors.get("connection_wait_timeout"):
                return outcome
            self._say(f"{rate:,.1f}/s: {spoiled[0]}")
        raise LoadTestError(CLIENT_IS_THE_LIMIT.format(spoiled[0]))

    def _holds(self, rate: float, purpose: str) -> bool:
        """Run one probe and return whether the objective held."""
        outcome = self._measured(rate)
        recorder = outcome.recorder
        latency = recorder.latency()
        missed = self._objective.missed(recorder, latency)
        p99_ms = latency.percentile_ms(99)
        self._curve.append(
            {
                "rate": rate,
                "purpose": purpose,
                "held": not missed,
                "missed_because": missed,
                "achieved": recorder.ok / recorder.answering_seconds(outcome.seconds),
                "errors": recorder.errors.total() / max(1, recorder.scheduled),
                "unreranked": unreranked_share(recorder),
                "p50_ms": latency.percentile_ms(50),
                "p90_ms": latency.percentile_ms(90),
                "p99_ms": p99_ms,
            }
        )
        self._last = outcome
        if purpose == "confirmation" and not missed:
            self._best = outcome
        p99 = "–" if p99_ms is None else f"{p99_ms:,.1f} ms"
        self._say(f"{rate:,.1f}/s: p99 {p99}, {'; '.join(missed) or 'held'} ({purpose})")
        return not missed


def saturation(plan: Plan, probe: Probe, say: Say) -> float:
    """Return the highest number of answers per second: double the rate until the answers fall behind.

    Requests count by their titles, because a server that has too much to do answers the small ones first.
    A first probe without any answer is repeated, because the server was still busy with other work.
    """
    steady = plan.changed(arrivals="poisson", rate_to=None, phases=(), trace=None)
    rate = 20.0
    best = 1.0
    for number in range(16):
        outcome = probe(steady.changed(rate=rate, seed=plan.seed + number + 1))
        if outcome.interrupted:
            raise LoadTestError("interrupted before the saturation was measured")
        achieved = _answered_in_time(outcome)
        best = max(best, achieved)
        say(f"saturation: {achieved:,.1f} of {rate:,.1f} requests/s answered")
        settle(plan.url)
        if not achieved and not number:
            continue
        if achieved < KEEPING_UP * outcome.recorder.scheduled / outcome.seconds:
            return best
        if spoiled := client_limits(outcome):
            raise LoadTestError(CLIENT_IS_THE_LIMIT.format(spoiled[0]))
        rate *= 2
    raise LoadTestError(f"{rate:g} requests/s do not saturate the server")


def settle(url: str) -> None:
    """Wait until the server answers quickly again, so that one probe's queue does not slow the next."""
    deadline = time.monotonic() + SETTLE_S
    while (started := time.monotonic()) < deadline:
        server.fetch(url, "/health/ready")
        if time.monotonic() - started < 0.25:
            return


def _answered_in_time(outcome: Outcome) -> float:
    """Return good answers per second while requests were sent; answers to a backlog later do not count.

    A good answer counts as much as its titles are of the mean request's.
    """
    recorder = outcome.recorder
    first = round(FILLING_S / recorder.window) if outcome.seconds > FILLING_S else 0
    inside = recorder.windows[first : max(first + 1, round(outcome.seconds / recorder.window))]
    if not inside or not recorder.titles:
        return 0.0
    titles_each = recorder.titles / (recorder.scheduled - recorder.errors["not_sent"])
    return sum(window.titles for window in inside) / titles_each / (len(inside) * recorder.window)
