"""Quantiles of |score difference| over any number of pairs, from counts in logarithmic bins.

A bin is one twentieth of a decade, from 1e-6 to 1. So a quantile is right to within 6 %, and the histograms
of replicas and days can be added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

BINS_PER_DECADE = 20
SMALLEST = 1e-6
LAST_BIN = BINS_PER_DECADE * 6
"""Bin 0 holds everything below SMALLEST; the last bin holds everything from 0.89 up."""


def bin_of(difference: float) -> int:
    """Return the bin of one |difference|."""
    if difference < SMALLEST:
        return 0
    return min(1 + int(math.log10(difference / SMALLEST) * BINS_PER_DECADE), LAST_BIN)


def histogram(differences: Iterable[float]) -> dict[int, int]:
    """Return the number of differences in each bin."""
    counts: dict[int, int] = {}
    for difference in differences:
        number = bin_of(difference)
        counts[number] = counts.get(number, 0) + 1
    return counts


def quantile(counts: Mapping[int, int], fraction: float) -> float | None:
    """Return the |difference| below which a fraction lies (its bin's geometric middle), or None."""
    total = sum(counts.values())
    rank, seen = fraction * total, 0
    for number in sorted(counts):
        seen += counts[number]
        if counts[number] and seen >= rank:
            return 0.0 if number == 0 else SMALLEST * 10 ** ((number - 0.5) / BINS_PER_DECADE)
    return None
