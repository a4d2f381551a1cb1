"""Intervals and tests by cluster bootstrap: whole queries are drawn, never single pairs.

Intervals are symmetric bootstrap-t (Hall 1988, Annals of Statistics 16, 927–985): each resample's distance
from the estimate is divided by its own standard error, t, and the interval is the estimate ± the 95 % point
of |t|. Standard errors are those of the jackknife (Efron 1982): a query's influence on a metric is how much
the metric changes without it, and a resample's error is the spread of the influences of the queries that it
drew.

One-sided bounds and p-values use the signed t. If a mask harms few queries but much, t is skewed, and |t|
lets it pass too often. No bootstrap can see a loss that is in no query of the sample: one that 1 query in
40 has is in none of 34 with a chance of 42 %, and in none of 100 with 8 %. So there are no one-sided claims
below MIN_TESTED queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.numbers import fixed

MIN_QUERIES = 10
"""Intervals resample whole queries; a metric that rests on fewer than this has none."""

MIN_TESTED = 100
"""One-sided tests claim nothing if fewer queries than this have titles of different grades."""

ERROR_RATE = 0.025
"""The chance that a loss of the margin or more passes a non-inferiority test."""

POWER = 0.8
"""The chance of what changes nothing to pass with as many queries as `queries_needed` says."""

NO_INTERVAL = " (no interval)"
"""The text after a value without an interval."""

_MIN_ERROR = 0.25
"""A resample's standard error is at least this share of the data's own. If an effect rests on a few
queries, some resamples hold none of them, and their error of 0 would make every interval infinite."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its 95 % interval; the ends are nan if the value is undefined or rests on
    fewer than MIN_QUERIES queries."""

    value: float
    low: float
    high: float

    @property
    def ends(self) -> list[float]:
        """Return both ends, as JSON has them."""
        return [self.low, self.high]

    def is_above(self, bound: float) -> bool:
        """Return whether the interval lies above `bound`: commands and reports claim no more than that."""
        return self.low > bound

    def is_below(self, bound: float) -> bool:
        """Return whether the interval lies below `bound`. No interval lies below or above anything."""
        return self.high < bound

    def text(self, digits: int = 3, *, sign: bool = False) -> str:
        """Return the value and its interval: 0.512 (0.478 to 0.546). sign: what is above 0 gets a plus."""
        if self.value != self.value:
            return "–"
        value, low, high = (fixed(end, digits, sign=sign) for end in (self.value, self.low, self.high))
        return f"{value}{NO_INTERVAL}" if self.low != self.low else f"{value} ({low} to {high})"

    def within(self, low: float, high: float) -> Interval:
        """Return the part of the interval that is in a range."""
        return replace(
            self, low=float(np.clip(self.low, low, high)), high=float(np.clip(self.high, low, high))
        )


@dataclass(frozen=True, slots=True)
class Draws:
    """A metric on the data (row 0) and on each resample.

    values: (1 + resamples,). influences: (queries,), whose mean over the queries of a resample is about the
    resample's distance from the data's value. queries: how many the metric rests on.
    """

    values: Floats
    influences: Floats
    queries: int

    def __sub__(self, other: Draws) -> Draws:
        """Return the paired difference: both draws are of the same queries and resamples."""
        return Draws(self.values - other.values, self.influences - other.influences, self.queries)

    def relative_to(self, base: Draws) -> Draws:
        """Return the relative change (self − base) / base; nan if the base is 0."""
        divisor = np.where(base.values == 0, np.nan, base.values)
        ratio = self.values / divisor
        influences = (self.influences - ratio[0] * base.influences) / divisor[0]
        return Draws(ratio - 1, influences, self.queries)


MetricDraws = dict[str, Draws]
"""The draws of each metric, by its name."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its standard error and the bootstrap distribution of t, ascending.

    testable: False if it rests on too few queries (MIN_TESTED). One-sided p-values are then nan and
    one-sided bounds −inf. `estimate` makes it.
    """

    value: float
    error: float
    t: Floats
    testable: bool = True

    def interval(self) -> Interval:
        """Return the symmetric 95 % interval."""
        if not len(self.t):
            return Interval(self.value, float("nan"), float("nan"))
        reach = float(np.quantile(np.abs(self.t), 0.95)) * self.error
        return Interval(self.value, self.value - reach, self.value + reach)

    def text(self) -> str:
        """Return a change and its 95 % interval: −0.031 (−0.050 to −0.012)."""
        return self.interval().text(sign=True)

    def lower_bound(self, alpha: float) -> float:
        """Return the one-sided lower bound: the truth is below it with the error rate alpha."""
        if not len(self.t) or not self.testable:
            return float("-inf")
        return self.value - float(np.quantile(self.t, 1 - alpha)) * self.error

    def p_above(self, bound: float) -> float:
        """Return the p-value of "the truth is at most `bound`" against "it is above"."""
        if not len(self.t) or not self.testable:
            return float("nan")
        distance = self.value - bound
        if self.error == 0:  # without spread the sign decides
            return 0.0 if distance > 0 else 1.0
        beyond = len(self.t) - np.searchsorted(self.t, distance / self.error)
        return (1 + float(beyond)) / (1 + len(self.t))

    def p_below(self, bound: float) -> float:
        """Return the p-value of "the truth is at least `bound`" against "it is below"."""
        return replace(self, value=-self.value, t=-self.t[::-1]).p_above(-bound)


def queries_needed(
    change: Estimate, *, queries: int, having: int, margin: float, level: float = ERROR_RATE
) -> int | None:
    """Return how many queries like these would show that a metric falls by less than the margin.

    The chance of this is POWER if the truth is a change of 0. They are at least so many that MIN_TESTED have
    the metric. queries: how many the change was measured on; having: how many of these have the metric.
    level: of the one-sided test. None if they are too few to say.
    """
    if not (having and len(change.t) and math.isfinite(change.error)):
        return None
    from scipy.stats import norm  # every command imports this module, and scipy takes most of a second

    reach = float(norm.ppf(1 - level) + norm.ppf(POWER)) * change.error / margin
    return math.ceil(queries * max(reach**2, MIN_TESTED / having))


def resample(queries: int, resamples: int, seed: int) -> Floats:
    """Return how often each query is in the data, once, and in each resample: (1 + resamples, queries)."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(queries, np.full(queries, 1 / queries), size=resamples)
    return np.concatenate([np.ones((1, queries)), drawn])


def draws(
    statistics: Callable[[Floats], dict[str, Floats]], counts: Floats, queries_of: Callable[[str], int]
) -> MetricDraws:
    """Return each statistic on the data and on every resample, with its influences by jackknife.

    statistics: takes counts (rows, clusters) and returns each statistic by name, (rows,).
    counts: (1 + resamples, clusters), row 0 of ones. queries_of: returns how many queries a statistic rests
    on; of fewer than MIN_QUERIES, influences are nan.
    """
    clusters = counts.shape[1]
    on_resamples = statistics(counts)
    without_one = statistics(1 - np.eye(clusters))
    drawn = {}
    for name, values in on_resamples.items():
        queries = queries_of(name)
        influences = (clusters - 1) * (values[0] - without_one[name])
        if queries < MIN_QUERIES:
            influences = np.full_like(influences, np.nan)
        drawn[name] = Draws(values, influences, queries)
    return drawn


def standard_errors(influences: Floats, counts: Floats) -> Floats:
    """Return the standard error on the data and on each resample: (1 + resamples,)."""
    queries = counts.shape[1]
    spread = counts @ influences**2 / queries - (counts @ influences / queries) ** 2
    return np.asarray(np.sqrt(np.maximum(spread, 0) / max(queries - 1, 1)))


def estimate(values: Floats, errors: Floats, *, testable: bool = True) -> Estimate:
    """Return the estimate. values and errors: (1 + resamples,) each; row 0 is the data."""
    value = float(values[0])
    error = float(errors[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        t = (values[1:] - value) / np.maximum(errors[1:], _MIN_ERROR * error)
    if error == 0:
        t = np.zeros(len(values) - 1)
    if not (np.isfinite(value) and np.isfinite(error)):
        t = np.empty(0)
    return Estimate(value, error, np.sort(t[np.isfinite(t)]), testable)
