"""Intervals and tests by cluster bootstrap: whole queries are drawn, never single pairs.

The rule is the symmetric bootstrap-t (Hall 1988, Annals of Statistics 16, 927–985): each resample's distance
from the estimate is divided by its own standard error, and the interval is the estimate ± the 95 % point of
these distances. With 30 to 90 queries of unequal size it covered the truth in 94 to 96 % of simulated data
sets; percentile intervals covered it in 86 to 94 %, and BCa in 81 to 95 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_QUERIES = 10
"""Intervals resample whole queries; a metric that rests on fewer than this has none."""

_LEAST_ERROR = 0.25
"""A resample's standard error is at least this share of the data's own. If an effect rests on a few queries,
some resamples hold none of them, and their error of 0 would make every interval infinite."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its 95 % interval; the ends are nan if the value is undefined or rests on fewer
    than MIN_QUERIES queries."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Draws:
    """A metric on the data (row 0) and on each resample.

    values: (1 + resamples,). influences: (1 + resamples, queries): the derivative by each query; their
    weighted squares add up to the squared standard error (delta method).
    """

    values: Floats
    influences: Floats

    def __sub__(self, other: Draws) -> Draws:
        """Return the paired difference: both draws are of the same queries and resamples."""
        return Draws(self.values - other.values, self.influences - other.influences)

    def without_error(self) -> Draws:
        """Return the values with undefined influences: they get no interval and no p-value."""
        return Draws(self.values, np.full_like(self.influences, np.nan))

    def relative_to(self, base: Draws) -> Draws:
        """Return the relative change (self − base) / base; nan if the base is 0."""
        whole = np.where(base.values == 0, np.nan, base.values)
        ratio = self.values / whole
        slopes = (self.influences - ratio[:, None] * base.influences) / whole[:, None]
        return Draws(ratio - 1, slopes)


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its standard error and the bootstrap distribution of |t|, ascending.

    `estimate` makes it. Intervals and p-values come from the same distribution, so they agree.
    """

    value: float
    error: float
    distances: Floats

    def interval(self, level: float = 0.95) -> Interval:
        """Return the symmetric interval at a level such as 0.95."""
        if not len(self.distances):
            return Interval(self.value, float("nan"), float("nan"))
        reach = float(np.quantile(self.distances, level)) * self.error
        return Interval(self.value, self.value - reach, self.value + reach)

    def p_above(self, bound: float) -> float:
        """Return the p-value of "the truth is at most `bound`" against "it is above"."""
        return self._p(self.value - bound)

    def p_below(self, bound: float) -> float:
        """Return the p-value of "the truth is at least `bound`" against "it is below"."""
        return self._p(bound - self.value)

    def _p(self, distance: float) -> float:
        if not len(self.distances):
            return float("nan")
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        beyond = len(self.distances) - np.searchsorted(self.distances, abs(distance) / self.error)
        tail = (1 + float(beyond)) / (1 + len(self.distances)) / 2
        return tail if distance > 0 else 1 - tail


def resample(queries: int, resamples: int, seed: int) -> Floats:
    """Return how often each resample holds each query, (resamples, queries); rows sum to `queries`."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(queries, np.full(queries, 1 / queries), size=resamples).astype(np.float64)


def with_data(counts: Floats) -> Floats:
    """Put a row of ones, the data itself, before the resamples' counts: (1 + resamples, queries)."""
    return np.concatenate([np.ones((1, counts.shape[1])), counts])


def standard_errors(influences: Floats, counts: Floats) -> Floats:
    """Return (resamples,) standard errors, clustered by query. influences, counts: (resamples, queries)."""
    queries = counts.shape[1]
    return np.asarray(np.sqrt((counts * influences**2).sum(1) * queries / max(queries - 1, 1)))


def estimate(values: Floats, errors: Floats) -> Estimate:
    """Return the estimate. values and errors: (1 + resamples,) each; row 0 is the data."""
    value, error = float(values[0]), float(errors[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        distances = np.abs(values[1:] - value) / np.maximum(errors[1:], _LEAST_ERROR * error)
    if error == 0:
        distances = np.zeros(len(values) - 1)
    if not (np.isfinite(value) and np.isfinite(error)):
        distances = np.empty(0)
    return Estimate(value, error, np.sort(distances[np.isfinite(distances)]))


def symmetric_t(draws: Draws, counts: Floats) -> Interval:
    """Return the 95 % interval of a metric; counts: (1 + resamples, queries), row 0 of ones."""
    return estimate(draws.values, standard_errors(draws.influences, counts)).interval()
