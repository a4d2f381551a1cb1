"""What an arm did in the last seconds, on this replica."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SLOTS = 30
"""A window moves on by a thirtieth of its length at a time."""

SCORE_BINS = 100
UNBINNED = 64

# 0.5 ms to 60 s, 10 % apart: a percentile read from it is right to 5 %.
LATENCY_BOUNDS = tuple(0.0005 * 1.1**step for step in range(124))


@dataclass(slots=True)
class Counts:
    """Requests of one arm.

    errors: that the arm's variant failed. slow: over the guardrail's limit.
    latencies: by LATENCY_BOUNDS. scores: pairs by score, (SCORE_BINS,) over [0, 1].
    """

    requests: int = 0
    errors: int = 0
    slow: int = 0
    latencies: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(len(LATENCY_BOUNDS) + 1, dtype=np.int64)
    )
    scores: NDArray[np.int64] = field(default_factory=lambda: np.zeros(SCORE_BINS, dtype=np.int64))

    def add(self, other: Counts) -> None:
        self.requests += other.requests
        self.errors += other.errors
        self.slow += other.slow
        self.latencies += other.latencies
        self.scores += other.scores

    @property
    def error_rate(self) -> float | None:
        return self.errors / self.requests if self.requests else None

    @property
    def p99_seconds(self) -> float | None:
        """The 99th percentile: the upper bound of its bin."""
        total = int(self.latencies.sum())
        if not total:
            return None
        rank = -(-99 * total // 100)
        index = int(np.searchsorted(np.cumsum(self.latencies), rank))
        return LATENCY_BOUNDS[min(index, len(LATENCY_BOUNDS) - 1)]


class Window:
    """A sliding window over one arm's requests. Not thread-safe: it belongs to the event loop."""

    def __init__(self, seconds: float, slow_seconds: float | None) -> None:
        self._slot_seconds = seconds / SLOTS
        self._slow_seconds = slow_seconds
        self._slots: deque[tuple[int, Counts]] = deque()
        self._unbinned: list[NDArray[np.float32]] = []  # scores of the last slot: cheaper to bin many at once

    def record(
        self, now: float, seconds: float, *, scores: NDArray[np.float32] | None = None, is_error: bool = False
    ) -> None:
        """One request that took so many seconds. scores: (pairs,) in [0, 1]; None where nobody asks."""
        slot = int(now / self._slot_seconds)
        if not self._slots or self._slots[-1][0] != slot:
            self._bin()
            self._expire(slot)
            self._slots.append((slot, Counts()))
        counts = self._slots[-1][1]
        counts.requests += 1
        counts.errors += is_error
        counts.slow += self._slow_seconds is not None and seconds > self._slow_seconds
        counts.latencies[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        if scores is not None:
            self._unbinned.append(scores)
            if len(self._unbinned) == UNBINNED:
                self._bin()

    def total(self, now: float) -> Counts:
        """All of the window that ends now."""
        self._bin()
        self._expire(int(now / self._slot_seconds))
        total = Counts()
        for _, counts in self._slots:
            total.add(counts)
        return total

    def _bin(self) -> None:
        if self._unbinned:
            scores = np.concatenate(self._unbinned)
            self._unbinned.clear()
            bins = np.minimum((scores * SCORE_BINS).astype(np.int64), SCORE_BINS - 1)
            self._slots[-1][1].scores += np.bincount(bins, minlength=SCORE_BINS)

    def _expire(self, slot: int) -> None:
        while self._slots and self._slots[0][0] <= slot - SLOTS:
            self._slots.popleft()
