"""Finds the highest rate that meets an objective, by bracketing, bisection and confirmation."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from loadtest import server_side
from loadtest.errors import LoadTestError
from loadtest.objective import Objective
from loadtest.plan import Plan
from loadtest.running import Outcome
from loadtest.validity import invalid_because

RESOLUTION = 0.05
CONFIRMATIONS = 2
MOST_PROBES = 40
MIN_REQUESTS = 20
"""Requests that a probe must send for a conclusion."""

PAST_THE_KNEE = (1.25, 1.6)
"""Multiples of the lowest rate that failed; they are measured too, for the curve in the report."""

SETTLE_S = 10.0
KEEPING_UP = 0.9
FILLING_S = 1.0
"""Seconds of a saturation probe until answers come steadily."""

STEADY: dict[str, Any] = {"arrivals": "poisson", "phases": (), "trace": None}
"""What a saturation probe has in place of the plan's own times."""

Probe = Callable[[Plan], Outcome]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Point:
    """The result of one probe of a rate."""

    rate: float
    purpose: str
    held: bool
    missed_because: list[str]
    achieved: float
    errors: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The result of a search.

    rate: the highest rate that was confirmed; None if not even the lowest one held. lost_at: the lowest rate
    above it that was probed and did not hold; None if none was. Each probe may be wrong by chance, so the two
    are no interval. limited_by: `server`, or `client` if the client was the limit; then the rate held, but
    was not confirmed.
    """

    rate: float | None
    lost_at: float | None
    limited_by: str
    curve: list[Point]
    last: Outcome

    def as_json(self) -> dict[str, Any]:
        """Return plain values for the report."""
        return {
            "rate": self.rate,
            "lost_at": self.lost_at,
            "limited_by": self.limited_by,
            "curve": sorted((asdict(point) for point in self.curve), key=lambda point: point["rate"]),
        }


class ClientLimited(Exception):
    """The client cannot send that fast, so the result would say nothing about the server."""


class Search:
    """Probes rates of one plan against one objective, and keeps the outcomes."""

    def __init__(self, plan: Plan, objective: Objective, probe: Probe, say: Say) -> None:
        self._plan, self._objective, self._probe, self._say = plan, objective, probe, say
        self.curve: list[Point] = []
        self._kept: Outcome | None = None
        self.best: Outcome | None = None

    def find(self, first: float) -> Capacity:
        """Search, beginning with `first` requests per second."""
        limited_by = "server"
        low, high = 0.0, None
        try:
            low, high = self._bracket(first)
            while low and high and high / low > 1 + RESOLUTION and len(self.curve) < MOST_PROBES:
                middle = (low * high) ** 0.5
                low, high = (middle, high) if self._holds(middle, "bisection") else (low, middle)
            while low and not self._confirmed(low):
                high, low = low, self._next_lower(low)
            if high:
                for factor in PAST_THE_KNEE:
                    self._holds(high * factor, "past the knee")
        except ClientLimited:
            limited_by = "client"
            high = min((p.rate for p in self.curve if not p.held), default=None)
            held = (p.rate for p in self.curve if p.held and (high is None or p.rate < high))
            low = max(held, default=0.0)
        last = self.best or self._kept
        assert last is not None
        return Capacity(low or None, high, limited_by, self.curve, last)

    def _bracket(self, first: float) -> tuple[float, float | None]:
        rate = first
        if self._holds(rate, "bracketing"):
            for _ in range(20):
                rate *= 2
                if not self._holds(rate, "bracketing"):
                    return rate / 2, rate
            raise LoadTestError(f"even {rate:g} requests/s meet the objective; start with a higher --rate")
        for _ in range(10):
            if rate / 2 * self._plan.duration < MIN_REQUESTS:
                break
            rate /= 2
            if self._holds(rate, "bracketing"):
                return rate, rate * 2
        return 0.0, rate

    def _confirmed(self, rate: float) -> bool:
        return all(self._holds(rate, "confirmation") for _ in range(CONFIRMATIONS))

    def _next_lower(self, rate: float) -> float:
        lower = rate / (1 + RESOLUTION)
        is_enough = lower * self._plan.duration >= MIN_REQUESTS
        return lower if len(self.curve) < MOST_PROBES and is_enough else 0.0

    def _holds(self, rate: float, purpose: str) -> bool:
        """Run one probe and return whether the objective held; repeat an invalid run once."""
        for attempt in itertools.count():
            settle(self._plan)
            outcome = self._probe(self._plan.changed(rate=rate, seed=self._plan.seed + len(self.curve) + 1))
            if outcome.interrupted:
                raise LoadTestError("interrupted before the highest rate was found")
            spoiled = invalid_because(outcome)
            if not spoiled:
                break
            self._say(f"{rate:,.1f}/s: {spoiled[0]}")
            if purpose == "past the knee":
                return False
            if outcome.recorder.errors.get("connection_wait_timeout"):
                break  # the server kept all connections busy too long, which is a result
            if attempt:
                self._kept = self._kept or outcome
                raise ClientLimited
        point = self._point(rate, purpose, outcome)
        self.curve.append(point)
        self._kept = outcome
        if purpose == "confirmation" and point.held:
            self.best = outcome
        p99 = "–" if point.p99_ms is None else f"{point.p99_ms:,.1f} ms"
        verdict = "held" if point.held else "; ".join(point.missed_because)
        self._say(f"{rate:,.1f}/s: p99 {p99}, {verdict} ({purpose})")
        return point.held

    def _point(self, rate: float, purpose: str, outcome: Outcome) -> Point:
        recorder = outcome.recorder
        latency = recorder.latency()
        missed = self._objective.missed(recorder, latency)
        errors = sum(recorder.errors.values()) / max(1, recorder.scheduled)
        p50, p90, p99 = (latency.percentile_ms(percent) for percent in (50, 90, 99))
        achieved = recorder.ok / recorder.answering_seconds(outcome.seconds)
        return Point(rate, purpose, not missed, missed, achieved, errors, p50, p90, p99)


def saturation(plan: Plan, probe: Probe, say: Say) -> float:
    """Return the highest number of answers per second: double the rate until the answers fall behind.

    Requests count by their titles, because a server that has too much to do answers the small ones first.
    A first probe without any answer is repeated, because the server was still busy with other work.
    """
    rate, best = 20.0, 1.0
    for number in range(16):
        outcome = probe(plan.changed(rate=rate, **STEADY, seed=plan.seed + number + 1))
        if outcome.interrupted:
            raise LoadTestError("interrupted before the saturation was measured")
        recorder = outcome.recorder
        achieved = _answered_in_time(outcome)
        best = max(best, achieved)
        say(f"saturation: {achieved:,.1f} of {rate:,.1f} requests/s answered")
        settle(plan)
        if not achieved and not number:
            continue
        if achieved < KEEPING_UP * recorder.scheduled / outcome.seconds:
            return best
        if invalid_because(outcome):
            raise LoadTestError(
                "the client reached its limit before the server: " + invalid_because(outcome)[0]
            )
        rate *= 2
    raise LoadTestError(f"{rate:g} requests/s do not saturate the server")


def settle(plan: Plan) -> None:
    """Wait until the server answers quickly again, so that one probe's queue does not slow the next."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        started = time.monotonic()
        server_side.fetch(plan, "/health/ready")
        if time.monotonic() - started < 0.25:
            return


def _answered_in_time(outcome: Outcome) -> float:
    """Return good answers per second while requests were sent; answers to a backlog later do not count.

    A good answer counts as much as its titles are of the mean request's.
    """
    recorder = outcome.recorder
    first = round(FILLING_S / recorder.window) if outcome.seconds > FILLING_S else 0
    inside = recorder.windows[first : max(first + 1, round(outcome.seconds / recorder.window))]
    answers = sum(window.answered for window in recorder.windows)
    if not inside or not answers:
        return 0.0
    # Only answers of any kind are counted by time, so good titles are related to them, not to all requests:
    # a request that timed out is missing from the answers already.
    dispatched = recorder.scheduled - recorder.errors.get("not_sent", 0)
    good_titles = (recorder.titles_scheduled - recorder.titles_failed) / answers
    weight = good_titles * dispatched / recorder.titles_scheduled
    return sum(window.answered for window in inside) / (len(inside) * recorder.window) * weight
