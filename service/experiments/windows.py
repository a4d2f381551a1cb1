"""Sliding windows over the requests of each arm: what this replica saw in the last minute.

`pool` adds up those of all replicas.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headroom.service.experiments.definition import Guardrails
from headroom.service.experiments.estimates import Floats
from headroom.service.experiments.ledger import Ledger

Scores = NDArray[np.float32]

SLOT_SECONDS = 2.0
SLOTS = 30
"""A window is a minute long, and advances by a slot at a time."""

SCORE_BINS = 100

MAX_FAILING_UNITS = 100
"""Failing units that a slot tells apart. Where there are more, no single one decides."""

MAX_SCORED_UNITS = 1000
"""Units whose scores one slot counts, so that a long window does not fill the memory."""

MARK_BYTES = 3

FORMAT = 1
"""Changes with the meaning of a count, so that releases that count otherwise are not added up."""


def mark_of(unit: str) -> int:
    """Return a unit's mark: 24 bits of its hash, by which replicas know a unit that several served."""
    return int.from_bytes(blake2b(unit.encode(), digest_size=MARK_BYTES).digest())


@dataclass(slots=True)
class Counts:
    """Counts of one arm's requests in the last minute.

    errors: requests that the arm's variant failed. slow: requests over the guardrail's limit.
    errors_by_unit, slow_by_unit: the same for each of the first MAX_FAILING_UNITS units of a slot that had
    any, by the unit's mark. scores: (SCORE_BINS,) over [0, 1], one score of each unit: neither the requests
    of a unit nor the titles of a request are independent samples.
    replicas: how many saw these requests.
    """

    requests: int = 0
    errors: int = 0
    slow: int = 0
    scores: Floats = field(default_factory=lambda: np.zeros(SCORE_BINS))
    errors_by_unit: Counter[int] = field(default_factory=Counter)
    slow_by_unit: Counter[int] = field(default_factory=Counter)
    replicas: int = 1

    def add(self, other: Counts) -> None:
        """Add the counts of other requests of the arm, on the same replicas."""
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
    scored: list[int] = field(default_factory=list)  # the marks of the units in `counts.scores`


class SlidingWindow:
    """Counts the requests of the last minute. Not thread-safe: it belongs to the event loop.

    A unit's score is that of one title of its first request. It counts until that request leaves the window;
    then the unit's next request counts.

    basis: what is counted, as text.
    """

    def __init__(self, limits: Guardrails, basis: str = "") -> None:
        self.basis = basis
        self._slow_s = math.inf if limits.p99_ms is None else limits.p99_ms / 1000
        self._counts_scores = limits.score_shift is not None
        self._slots: deque[_Slot] = deque()
        self._bins: dict[int, int] = {}  # of the scores of all slots, by the unit's mark, latest last

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
        if scores is not None and self._counts_scores and len(slot.scored) < MAX_SCORED_UNITS:
            self._score(slot, mark_of(unit), scores)

    def total(self, now: float) -> Counts:
        """Return the counts of the window that ends now."""
        self._expire(int(now / SLOT_SECONDS))
        total = Counts()
        for slot in self._slots:
            total.add(slot.counts)
        return total

    def latest_bins(self, units: int) -> list[tuple[int, int]]:
        """Return mark and score's bin of the latest scored units, at most so many."""
        return list(islice(reversed(self._bins.items()), units))

    def histogram_of_others(self, bins: Mapping[int, int]) -> Floats:
        """Return the histogram, (SCORE_BINS,), of the scores of units that are not in this window.

        bins: by the unit's mark.
        """
        of_others = [bin_ for mark, bin_ in bins.items() if mark not in self._bins]
        return np.bincount(np.array(of_others, np.int64), minlength=SCORE_BINS).astype(np.float64)

    def _score(self, slot: _Slot, mark: int, scores: Callable[[], Scores]) -> None:
        """Count one of a request's scores, unless its unit has one in the window. The mark draws it."""
        if mark in self._bins or not len(values := scores()):
            return
        score = float(values[mark % len(values)])
        bin_ = min(int(score * SCORE_BINS), SCORE_BINS - 1)
        slot.counts.scores[bin_] += 1
        slot.scored.append(mark)
        self._bins[mark] = bin_

    def _expire(self, number: int) -> None:
        while self._slots and self._slots[0].number <= number - SLOTS:
            for mark in self._slots.popleft().scored:
                del self._bins[mark]


class ArmWindows:
    """Keeps one window per arm.

    A window starts anew if what it counts changes: the arm's variant, or a limit that decides what is
    counted. Any other edit leaves it. Not thread-safe: it belongs to the event loop.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._in_force = ledger.in_force  # that the windows are of
        self._windows: dict[tuple[str, str], SlidingWindow] = {}

    def of(self, experiment: str, arm: str) -> SlidingWindow | None:
        """Return one arm's window; None if there is no such arm."""
        return self.all().get((experiment, arm))

    def all(self) -> Mapping[tuple[str, str], SlidingWindow]:
        """Return the windows by experiment and arm."""
        in_force = self._ledger.in_force
        if in_force is not self._in_force:
            self._in_force = in_force
            self._renew()
        return self._windows

    def counts(self, experiment: str, arm: str) -> Counts:
        """Return the counts of one arm's window now."""
        window = self.of(experiment, arm)
        return Counts() if window is None else window.total(self._ledger.monotonic())

    def _renew(self) -> None:
        windows = {}
        definitions = self._ledger.declared.definitions
        for name, experiment in self._in_force.experiments.items():
            limits = experiment.config.guardrails
            for arm in experiment.config.arms:
                key = (name, arm.name)
                definition = definitions.get(arm.variant, "")
                basis = (
                    f"{FORMAT} {arm.variant} {definition} {limits.p99_ms} {limits.score_shift is not None}"
                )
                window = self._windows.get(key)
                if window is None or window.basis != basis:
                    window = SlidingWindow(limits, basis)
                windows[key] = window
        self._windows = windows


def _count(by_unit: Counter[int], unit: str) -> None:
    mark = mark_of(unit)
    if mark in by_unit or len(by_unit) < MAX_FAILING_UNITS:
        by_unit[mark] += 1
