"""Durations in an HdrHistogram: three digits from 1 µs to 1 h, mergeable without loss, constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]  # the package ships no types
from numpy.typing import NDArray

HIGHEST_US = 3_600_000_000
PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)


class Histogram:
    """Counts of durations. Those longer than an hour count as an hour; none is dropped."""

    __slots__ = ("_hdr", "_record")

    def __init__(self) -> None:
        self._hdr = HdrHistogram(1, HIGHEST_US, 3, word_size=8)
        self._record = self._hdr.record_value

    def record(self, seconds: float) -> None:
        """Count one duration; negative ones (from clocks of other machines) count as 0."""
        microseconds = int(seconds * 1e6 + 0.5)
        self._record(0 if microseconds < 0 else min(microseconds, HIGHEST_US))

    def __len__(self) -> int:
        return int(self._hdr.get_total_count())

    def add(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        if len(other):  # the library would copy the unset minimum of an empty one
            self._hdr.add(other._hdr)

    def encode(self) -> str:
        """Return the counts as text that every HdrHistogram library reads (base64 of the V2 format)."""
        encoded: bytes = self._hdr.encode()
        return encoded.decode("ascii")

    def __reduce__(self) -> tuple[Callable[[str], Histogram], tuple[str]]:
        return Histogram.decode, (self.encode(),)

    @classmethod
    def decode(cls, text: str) -> Histogram:
        """Return the histogram that `encode` wrote."""
        histogram = cls()
        histogram._hdr = HdrHistogram.decode(text.encode("ascii"))
        histogram._record = histogram._hdr.record_value
        return histogram

    @classmethod
    def merged(cls, parts: Iterable[Histogram]) -> Histogram:
        """Return one histogram with the counts of all."""
        whole = cls()
        for part in parts:
            whole.add(part)
        return whole

    def percentile_ms(self, percent: float) -> float | None:
        """Return the duration that `percent` of the recorded ones do not exceed; None if there are none.

        Its rank is rounded up. The library rounds it to the nearest, so that 2 of 160 could be above p99.
        """
        if not len(self):
            return None
        below = np.cumsum(np.ctypeslib.as_array(self._hdr.counts))
        rank = math.ceil(round(percent * int(below[-1]) / 100, 6))  # rounded, as 99.9 has no exact double
        return self._value_ms(int(np.searchsorted(below, max(1, rank))))

    def _value_ms(self, bucket: int) -> float:
        """Return the highest milliseconds that this bucket counts."""
        return float(self._hdr.get_highest_equivalent_value(self._hdr.get_value_from_index(bucket))) / 1000

    def mean_ms(self) -> float | None:
        """Return the mean; None if there are none. The library's own method visits every empty bucket."""
        values, counts = self.counts()
        return float(np.average(values, weights=counts)) if len(values) else None

    def max_ms(self) -> float | None:
        """Return the longest; None if there are none."""
        return self._hdr.get_max_value() / 1000 if len(self) else None

    def summary_ms(self) -> dict[str, float | None]:
        """Return percentiles, mean and extremes in milliseconds, as in `report.json`."""
        summary = {f"p{percent:g}": self.percentile_ms(percent) for percent in PERCENTILES}
        low = self._hdr.get_min_value() / 1000 if len(self) else None
        return {"min": low, **summary, "max": self.max_ms(), "mean": self.mean_ms()}

    def counts(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return ascending milliseconds and the number of requests for each: (n,), (n,)."""
        counts = np.ctypeslib.as_array(self._hdr.counts).astype(np.int64)
        buckets = np.flatnonzero(counts)
        values = [self._value_ms(int(bucket)) for bucket in buckets]
        return np.array(values, dtype=np.float64), counts[buckets]
