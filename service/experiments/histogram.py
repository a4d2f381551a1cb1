"""Quantiles of |score difference| over any number of pairs, from counts in logarithmic bins.

A bin is one twentieth of a decade, from 1e-6 to 1. So a quantile is right to within 6 %, and the histograms
of replicas and days can be added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

BINS_PER_DECADE = 20
SMALLEST = 1e-6
LAST_BIN = BINS_PER_DECADE * 6
"""Bin 0 holds everything below SMALLEST; the last bin holds everything from 0.89 up."""


def histogram(differences: Sequence[float]) -> dict[int, int]:
    """Return the number of |differences| in each bin that has any."""
    decades = np.log10(np.maximum(differences, SMALLEST / 2) / SMALLEST)
    bins = np.clip(1 + np.floor(decades * BINS_PER_DECADE), 0, LAST_BIN).astype(np.int64)
    numbers, counts = np.unique(bins, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def quantile(counts: Mapping[int, int], fraction: float) -> float | None:
    """Return the |difference| below which a fraction lies (its bin's geometric middle), or None."""
    rank, seen = fraction * sum(counts.values()), 0
    for number in sorted(counts):
        seen += counts[number]
        if counts[number] and seen >= rank:
            return 0.0 if number == 0 else SMALLEST * 10 ** ((number - 0.5) / BINS_PER_DECADE)
    return None
