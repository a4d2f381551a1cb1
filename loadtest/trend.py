"""The slope of a series over time, with an interval that holds although neighbouring values are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_POINTS = 20
BANDWIDTH = 0.1
"""Share of the series over which values count as dependent."""

_CRITICAL = 1.9600 + 2.9694 * BANDWIDTH + 0.4160 * BANDWIDTH**2 - 0.5324 * BANDWIDTH**3
"""Critical value of the 95 % interval for Bartlett weights at this bandwidth (Kiefer and Vogelsang, 2005)."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Growth per hour with its 95 % interval, and the series' first and last value as the line gives them."""

    per_hour: float
    low: float
    high: float
    first: float
    last: float

    @property
    def grows(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend | None:
    """Return the trend of values at these times, or None if there are fewer than MIN_POINTS.

    The interval is Newey and West's, whose weights cover BANDWIDTH of the series, with the critical value for
    that share.
    """
    if len(seconds) < MIN_POINTS:
        return None
    hours = np.asarray(seconds, dtype=float) / 3600
    y = np.asarray(values, dtype=float)
    x = hours - hours.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    scores = x * (y - y.mean() - slope * x)
    lags = max(1, round(BANDWIDTH * len(scores)))
    variance = float(scores @ scores)
    for lag in range(1, lags):
        variance += 2 * (1 - lag / lags) * float(scores[lag:] @ scores[:-lag])
    half = _CRITICAL * max(variance, 0.0) ** 0.5 / spread
    at = y.mean() + slope * x[[0, -1]]
    return Trend(slope, slope - half, slope + half, float(at[0]), float(at[1]))
