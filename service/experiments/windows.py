"""Sliding windows over the requests of each arm: what this replica saw in the last minute."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headroom.service.experiments.definition import Guardrails
from headroom.service.experiments.estimates import Floats
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.started import Configs

Scores = NDArray[np.float32]

SLOT_SECONDS = 2.0
SLOTS = 30
"""A window is a minute long, and advances by a slot at a time."""

SCORE_BINS = 100

MAX_FAILING_UNITS = 100
"""Failing units that a slot tells apart. Where there are more, no single one decides."""

MAX_SCORED_UNITS = 1000
"""Units whose scores one slot counts, so that a long window does not fill the memory."""


@dataclass(slots=True)
class Counts:
    """Counts of one arm's requests.

    errors: requests that the arm's variant failed. slow: requests over the guardrail's limit.
    errors_by_unit, slow_by_unit: the same for each of the first MAX_FAILING_UNITS units of a slot that had
    any. scores: (SCORE_BINS,) over [0, 1]; each unit weighs 1,
    because neither the requests of a unit nor the titles of a request are an independent sample.
    """

    requests: int = 0
    errors: int = 0
    slow: int = 0
    scores: Floats = field(default_factory=lambda: np.zeros(SCORE_BINS))
    errors_by_unit: Counter[str] = field(default_factory=Counter)
    slow_by_unit: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Add the counts of other requests of the arm."""
        self.requests += other.requests
        self.errors += other.errors
        self.slow += other.slow
        self.scores += other.scores
        self.errors_by_unit.update(other.errors_by_unit)
        self.slow_by_unit.update(other.slow_by_unit)


@dataclass(frozen=True, slots=True)
class _Slot:
    number: int
    counts: Counts = field(default_factory=Counts)
    scored: list[str] = field(default_factory=list)  # the units in `counts.scores`


class SlidingWindow:
    """Counts the requests of the last minute. Not thread-safe: it belongs to the event loop.

    A unit's scores are those of its first request. They count until that request leaves the window; then the
    unit's next request counts.
    """

    def __init__(self, limits: Guardrails) -> None:
        self._slow_s = math.inf if limits.p99_ms is None else limits.p99_ms / 1000
        self._counts_scores = limits.score_shift is not None
        self._slots: deque[_Slot] = deque()
        self._scored: set[str] = set()  # the units in the scores of any slot

    def record(
        self,
        now: float,
        elapsed: float,
        *,
        unit: str = "",
        scores: Callable[[], Scores] | None = None,
        is_error: bool = False,
    ) -> None:
        """Count one request of a unit that took `elapsed` seconds.

        scores: returns (pairs,) in [0, 1]. It is called only if a guardrail needs them.
        """
        number = int(now / SLOT_SECONDS)
        if not self._slots or self._slots[-1].number != number:
            self._expire(number)
            self._slots.append(_Slot(number))
        slot = self._slots[-1]
        counts = slot.counts
        counts.requests += 1
        if is_error:
            counts.errors += 1
            _count(counts.errors_by_unit, unit)
        if elapsed > self._slow_s:
            counts.slow += 1
            _count(counts.slow_by_unit, unit)
        if scores is None or not self._counts_scores or unit in self._scored:
            return
        if len(slot.scored) < MAX_SCORED_UNITS and len(values := scores()):
            self._scored.add(unit)
            slot.scored.append(unit)
            bins = np.minimum((values * SCORE_BINS).astype(np.int64), SCORE_BINS - 1)
            counts.scores += np.bincount(bins, minlength=SCORE_BINS) / len(values)

    def total(self, now: float) -> Counts:
        """Return the counts of the window that ends now."""
        self._expire(int(now / SLOT_SECONDS))
        total = Counts()
        for slot in self._slots:
            total.add(slot.counts)
        return total

    def _expire(self, number: int) -> None:
        while self._slots and self._slots[0].number <= number - SLOTS:
            self._scored.difference_update(self._slots.popleft().scored)


class ArmWindows:
    """Keeps one window per arm. All windows start anew when an experiment is added or its limits change.

    Not thread-safe: it belongs to the event loop.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._configs: Configs = ()
        self._windows: dict[tuple[str, str], SlidingWindow] = {}

    def of(self, experiment: str, arm: str) -> SlidingWindow | None:
        """Return one arm's window; None if there is no such arm."""
        configs = self._ledger.configs
        if configs is not self._configs:  # the limits of the last config were others
            self._configs = configs
            self._windows = {
                (config.name, each.name): SlidingWindow(config.guardrails)
                for config in configs
                for each in config.arms
            }
        return self._windows.get((experiment, arm))

    def counts(self, experiment: str, arm: str) -> Counts:
        """Return the counts of one arm's window now."""
        window = self.of(experiment, arm)
        return Counts() if window is None else window.total(self._ledger.monotonic())


def _count(by_unit: Counter[str], unit: str) -> None:
    if unit in by_unit or len(by_unit) < MAX_FAILING_UNITS:
        by_unit[unit] += 1
