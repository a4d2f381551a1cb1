"""The slope of a series over time, with an interval that holds although neighbouring values are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BLOCKS = 10
"""The means of so many stretches of the series count as independent."""

_STUDENT = 2.306
"""Student's t at 97.5 % for BLOCKS - 2 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Trend:
    """Growth per hour with its 95 % interval, and the first and last value of the line."""

    per_hour: float
    low: float
    high: float
    first: float
    last: float


def trend(seconds: Sequence[float], values: Sequence[float]) -> Trend | None:
    """Return the trend of values at these times; None if there are fewer than two for each of BLOCKS.

    It is the least-squares line through the means of BLOCKS stretches, with Student's interval. Single values
    depend on those before them, so an interval from all of them would promise too much.
    """
    if len(seconds) < 2 * BLOCKS:
        return None
    hours = np.asarray(seconds, dtype=float) / 3600
    start = float(values[0])
    x = np.array([block.mean() for block in np.array_split(hours, BLOCKS)])
    y = np.array([block.mean() for block in np.array_split(np.asarray(values, dtype=float) - start, BLOCKS)])
    x0, y0 = x.mean(), y.mean()
    spread = float(((x - x0) ** 2).sum())
    slope = float((x - x0) @ (y - y0)) / spread
    rest = y - y0 - slope * (x - x0)
    error = (float(rest @ rest) / (BLOCKS - 2) / spread) ** 0.5
    half = _STUDENT * error
    first, last = (float(start + y0 + slope * (hour - x0)) for hour in (hours[0], hours[-1]))
    return Trend(slope, slope - half, slope + half, first, last)
