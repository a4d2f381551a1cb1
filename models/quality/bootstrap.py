"""Intervals and tests by cluster bootstrap: whole queries are drawn, never single pairs.

Intervals are symmetric bootstrap-t (Hall 1988, Annals of Statistics 16, 927–985): each resample's distance
from the estimate is divided by its own standard error, t, and the interval is the estimate ± the 95 % point
of |t|. Standard errors are those of the jackknife (Efron 1982): a query's influence on a metric is how much
the metric changes without it, and a resample's error is the spread of the influences of the queries that it
drew.

One-sided bounds and p-values take the worst of three: the signed t (if a mask harms few queries but much, t
is skewed, and |t| lets it pass too often); half the two-sided |t|, so that no bound lies inside of the
interval; and Gaffke's bound (2005; Learned-Miller and Thomas 2020, https://arxiv.org/abs/1905.06208), which
counts queries that are not in the sample. No bootstrap can see a loss that is in no query of the sample: one
that 1 query in 50 has is in none of 100 with a chance of 13 %. Gaffke adds one query that loses 1, all that a
metric has, and weighs all queries by Dirichlet's distribution. If nothing changes in n queries, its bound is
α^(1/n) − 1, so that a margin takes at least `minimum_queries` of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.numbers import fixed

MIN_QUERIES = 10
"""Intervals resample whole queries; a metric that rests on fewer than this has none."""

WORST = -1.0
"""The change in a query that is not in the sample: it loses all that a metric has. Of QWK, 0 is chance."""

ERROR_RATE = 0.025
"""The chance that a loss of the margin or more passes a non-inferiority test."""

POWER = 0.8
"""The chance of what changes nothing to pass with as many queries as `queries_needed` says."""

NO_INTERVAL = " (no interval)"
"""The text after a value without an interval."""

WEIGHTINGS = 4000
"""Random weightings of the queries for Gaffke's bound; as many as resamples if these are more."""

NO_SPREAD = 1e-9
"""Values that differ spread by more than this; less is rounding, of values that are all equal."""

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

    def by_query(self) -> Floats:
        """Return the metric of each query that has it, as far as influences say, (queries,) or (clusters,).

        The queries that lack a metric have no influence on it, so those of most influence are taken.
        """
        queries = min(self.queries, len(self.influences))
        strongest = np.argsort(-np.abs(self.influences), kind="stable")[:queries]
        distances = self.influences[strongest] * queries / len(self.influences)
        return np.asarray(self.values[0] + distances)

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

    by_query: the change in each query, (queries,), or in each cluster of queries; without them nothing is
    claimed: one-sided p-values are nan and bounds −inf. queries: how many there are. `estimate` makes it.
    """

    value: float
    error: float
    t: Floats
    by_query: Floats = field(default_factory=lambda: np.empty(0))
    queries: int = 0

    def interval(self, error_rate: float = 0.05) -> Interval:
        """Return the symmetric interval; the truth is outside of it with the error rate."""
        if not len(self.t):
            return Interval(self.value, float("nan"), float("nan"))
        reach = float(np.quantile(np.abs(self.t), 1 - error_rate)) * self.error
        return Interval(self.value, self.value - reach, self.value + reach)

    def text(self) -> str:
        """Return a change and its 95 % interval: −0.031 (−0.050 to −0.012)."""
        return self.interval().text(sign=True)

    def lower_bound(self, alpha: float) -> float:
        """Return the one-sided lower bound: the truth is below it with the error rate alpha."""
        if not self._is_testable:
            return float("-inf")
        reach = max(np.quantile(self.t, 1 - alpha), np.quantile(np.abs(self.t), 1 - 2 * alpha))
        unseen = gaffke_bound(self.by_query, self._worst, alpha, self._weightings)
        return min(self.value - float(reach) * self.error, unseen)

    def p_above(self, bound: float) -> float:
        """Return the p-value of "the truth is at most `bound`" against "it is above"."""
        if not self._is_testable:
            return float("nan")
        distance = self.value - bound
        if distance <= 0:
            return 1.0
        p = self._unseen_p(bound)
        if self.error > 0:  # without spread the sign decides
            t = distance / self.error
            beyond = max(np.count_nonzero(self.t >= t), np.count_nonzero(np.abs(self.t) >= t) / 2)
            p = max(p, (1 + float(beyond)) / (1 + len(self.t)))
        return p

    def p_below(self, bound: float) -> float:
        """Return the p-value of "the truth is at least `bound`" against "it is below"."""
        mirrored = replace(self, value=-self.value, t=-self.t[::-1], by_query=-self.by_query)
        return mirrored.p_above(-bound)

    @property
    def _is_testable(self) -> bool:
        return len(self.t) > 0 and len(self.by_query) > 0

    @property
    def _worst(self) -> float:
        """Return the change in an unseen query; in a cluster, it is one of several."""
        return self.value + (WORST - self.value) * min(1.0, len(self.by_query) / self.queries)

    @property
    def _weightings(self) -> int:
        return max(WEIGHTINGS, len(self.t))

    def _unseen_p(self, bound: float) -> float:
        """Return the p-value of Gaffke's bound. bound: below the value."""
        if np.ptp(self.by_query) < NO_SPREAD:
            share = min(1.0, (self.value - bound) / (self.value - self._worst))
            return float((1 - share) ** len(self.by_query))
        means = _weighted_means(self.by_query, self._worst, self._weightings)
        return float((1 + np.count_nonzero(means <= bound)) / (1 + len(means)))


def gaffke_bound(values: Floats, worst: float, quantile: float, weightings: int = WEIGHTINGS) -> float:
    """Return Gaffke's bound of the mean of values, (n,), which counts a value that is not in the sample.

    worst: that value. quantile: that the bound has among the means under random weights; below 0.5, worst is
    the lowest value that there can be, and the bound a lower one, else the highest and an upper one.
    """
    if np.ptp(values) < NO_SPREAD:
        share = 1 - min(quantile, 1 - quantile) ** (1 / len(values))  # the largest share of unseen values
        return float(values[0] + share * (worst - values[0]))
    return float(np.quantile(_weighted_means(values, worst, weightings), quantile))


def _weighted_means(values: Floats, worst: float, weightings: int) -> Floats:
    """Return means of the values, (n,), and a worst one under random weights, (weightings,)."""
    return np.asarray(_dirichlet_weights(weightings, len(values) + 1) @ np.append(values, worst))


@lru_cache(maxsize=2)
def _dirichlet_weights(weightings: int, values: int) -> Floats:
    """Return random weights of so many values, (weightings, values); each row's sum is 1."""
    weights = np.random.default_rng(0).standard_exponential((weightings, values))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def minimum_queries(margin: float, level: float = ERROR_RATE) -> int:
    """Return how many queries show at least that a metric falls by less than the margin, if nothing changes
    in any: with fewer, a share of queries as large as the margin may lose everything and none be seen.

    183 for a margin of 0.02 at 2.5 %. level: of the one-sided test.
    """
    if margin >= 1:
        return MIN_QUERIES
    return max(MIN_QUERIES, math.ceil(math.log(level) / math.log(1 - margin)))


def minimum_margin(queries: int, level: float = ERROR_RATE) -> float:
    """Return the smallest margin that so many queries can show; `minimum_queries` says why."""
    return float(1 - level ** (1 / queries)) if queries else 1.0


def queries_needed(change: Estimate, *, queries: int, margin: float, level: float = ERROR_RATE) -> int | None:
    """Return how many queries like these would show that a metric falls by less than the margin.

    The chance of this is POWER if the truth is a change of 0. queries: how many the data have, with and
    without the metric. level: of the one-sided test. None if they are too few to say.
    """
    having = change.queries
    if not (having and len(change.t) and math.isfinite(change.error)):
        return None
    from scipy.special import log_ndtr, ndtr, ndtri  # every command imports this module

    spread = change.error * math.sqrt(having)  # of one query
    quantile = float(ndtri(POWER))

    def suffices(count: int) -> bool:
        """Return whether the bound of so many queries lies above −margin with the chance POWER."""
        error = spread / math.sqrt(count)
        if error < NO_SPREAD:
            return True
        # A weighted mean is about normal, less the unseen query's weight, which is exponential: their sum's
        # tail is that of the exponentially modified normal distribution.
        x = margin - quantile * error
        of_weight = math.exp((count * error) ** 2 / 2 - count * x + log_ndtr(x / error - count * error))
        return x > 0 and float(ndtr(-x / error)) + of_weight <= level

    low = minimum_queries(margin, level)
    high = low
    while not suffices(high):
        low = high
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return math.ceil(queries * high / having)


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


def estimate_of(drawn: Draws, counts: Floats) -> Estimate:
    """Return the estimate of a metric or a change. counts: (1 + resamples, clusters), row 0 of ones."""
    errors = standard_errors(drawn.influences, counts)
    return estimate(drawn.values, errors, drawn.by_query(), drawn.queries)


def estimate(
    values: Floats, errors: Floats, by_query: Floats | None = None, queries: int | None = None
) -> Estimate:
    """Return the estimate. values and errors: (1 + resamples,) each; row 0 is the data.

    by_query: the change in each query, (queries,), or in each cluster of queries; without them nothing is
    claimed. queries: how many there are.
    """
    value = float(values[0])
    error = float(errors[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        t = (values[1:] - value) / np.maximum(errors[1:], _MIN_ERROR * error)
    if error == 0:
        t = np.zeros(len(values) - 1)
    if by_query is None:
        by_query = np.empty(0)
    if not (np.isfinite(value) and np.isfinite(error)):
        t = np.empty(0)
        by_query = np.empty(0)
    return Estimate(value, error, np.sort(t[np.isfinite(t)]), by_query, queries or len(by_query))
