"""Metrics of a ranking on judged pairs, with intervals by cluster bootstrap over queries.

Two evaluations of the same pairs share their resamples, so the interval of their difference is paired.
headroom.models.quality.bootstrap says how intervals are made. A model with grades has the metrics of
headroom.models.quality.graded too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headroom.models.arrays import Floats, Ints
from headroom.models.quality import bootstrap
from headroom.models.quality.bootstrap import (
    NO_SPREAD,
    Draws,
    Interval,
    MetricDraws,
    estimate_of,
    gaffke_bound,
)
from headroom.models.quality.labelled import LabelledPair, numbers_of_lists, numbers_of_queries
from headroom.models.quality.metrics import RANKED, Measures
from headroom.models.quality.rankings import BY_QUERY, Rankings

SMALLEST_PROBABILITY = 1e-9
"""Probabilities below this count as this in the log loss, which so has a highest value."""

RANGES = {
    "qwk": (-1.0, 1.0),
    "spearman": (-1.0, 1.0),
    "query_spearman": (-1.0, 1.0),
    "log_loss": (0.0, -math.log(SMALLEST_PROBABILITY)),
}
"""The range of a metric; 0 to 1 for any other."""

CLUSTERS = 1000
"""If there are more queries than this, they are put into this many groups, and groups are drawn: intervals
stay as good. Memory stops growing; Spearman's time grows with the pairs, that of other metrics stops."""

_FEW = 5
_FEW_SHARE = 0.2
"""Fewer queries than this, or than this share of them, are few: there may be rarer and worse ones."""

_NUMBERS = 4_000_000  # in an array of (resamples at a time, pairs), of which Spearman needs a few


class Evaluation:
    """A ranking of judged pairs.

    pairs: n, with their true grades. ranking: (n,) what ranks the pairs, a model's `Scores.raw_score`; its
    probabilities round to 1 and 0. relevant: the lowest grade that counts as relevant, for the metrics that
    ask only that.
    Each spelling of a query has a list of titles, which is ranked by itself. All spellings are one query:
    they are resampled together and count once.
    clusters: how many groups of queries are resampled, all queries if there are at most CLUSTERS.
    """

    measures: ClassVar[Measures] = RANKED

    def __init__(
        self, pairs: Sequence[LabelledPair], ranking: NDArray[np.floating], relevant: int = 1
    ) -> None:
        self.truth: Ints = np.array([pair.grade for pair in pairs], np.int64)
        self.ranking: Floats = np.asarray(ranking, np.float64)
        self.relevant = relevant
        self.query_of: Ints = np.array(numbers_of_queries(pairs), np.int64)
        self.list_of: Ints = np.array(numbers_of_lists(pairs), np.int64)
        self.queries = len(np.unique(self.query_of))
        self.clusters = min(self.queries, CLUSTERS)
        self._cluster_of = self.query_of % self.clusters
        self._of_list: dict[str, Floats] = {}

    def metrics(self) -> dict[str, float]:
        """Return the metrics on the pairs."""
        values = self.resampled(np.ones((1, self.clusters)))
        return {name: float(value[0]) for name, value in values.items()}

    def random_order_ndcg10(self) -> float:
        """Return the exact expected NDCG@10 of a random order: each rank expects its query's mean gain."""
        return float(np.nanmean(self._random_order)) if self.ranked_queries else float("nan")

    def over_random_order(self, counts: Floats) -> Draws:
        """Return by how much NDCG@10 is above that of a random order, paired by query.

        counts: (1 + resamples, clusters), how often each resample holds each cluster; row 0 of ones.
        """
        difference = self.of_list("ndcg10") - self._random_order

        def statistics(drawn: Floats) -> dict[str, Floats]:
            return {"ndcg10": _means(drawn @ self._summed(difference))[..., 0]}

        return bootstrap.draws(statistics, counts, self._queries_of)["ndcg10"]

    @cached_property
    def _random_order(self) -> Floats:
        """Return the NDCG@10 that a random order of each list expects, (lists,)."""
        return Rankings(self.list_of, self.truth, np.zeros(len(self.truth))).metric("ndcg10")

    def resampled(self, counts: Floats) -> dict[str, Floats]:
        """Return the metrics of resamples that hold cluster c counts[r, c] times: (resamples,) each.

        Those of `rankings.BY_QUERY` are means over the lists that have one; spearman is the rank correlation
        with the grades over all pairs.
        """
        by_query = {name: self.mean_over_lists(name, counts) for name in BY_QUERY}
        return by_query | {"spearman": self._spearman(counts)}

    def of_sums(self, counts: Floats) -> dict[str, Floats]:
        """Return the metrics of `measures` alone, which take a fraction of the time."""
        values = self.values(counts @ self.sums)
        return dict(zip(self.measures.names, values.T, strict=True))

    def values(self, sums: Floats) -> Floats:
        """Return the metrics of `measures` of added-up `sums`: (..., columns) → (..., names)."""
        return _means(sums)

    @cached_property
    def sums(self) -> Floats:
        """Return (clusters, 2 · names): of each metric its sum over a cluster's lists, and how many have
        one."""
        return np.concatenate([self._sum_and_count(name) for name in self.measures.names], axis=1)

    def draws(
        self, counts: Floats, statistics: Callable[[Floats], dict[str, Floats]] | None = None
    ) -> MetricDraws:
        """Return the metrics on the data and on resamples. counts: (1 + resamples, clusters), row 0 of ones.

        statistics: `resampled` or `of_sums`. A metric that rests on fewer than MIN_QUERIES queries has no
        error.
        """
        return bootstrap.draws(statistics or self.resampled, counts, self._queries_of)

    def _queries_of(self, name: str) -> int:
        """Return how many queries a metric rests on."""
        if name in BY_QUERY:
            return len(np.unique(self._query_of_list[np.isfinite(self.of_list(name))]))
        return self.queries

    @cached_property
    def rows_by_list(self) -> list[Ints]:
        """Return the pair indices of each list."""
        order = np.argsort(self.list_of, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.list_of[order])) + 1)

    @property
    def ranked_queries(self) -> int:
        """Return how many queries have titles that differ in grade."""
        return self._queries_of("ndcg10")

    @cached_property
    def _query_of_list(self) -> Ints:
        """Return the number of each list's query, (lists,)."""
        first = np.unique(self.list_of, return_index=True)[1]
        return np.asarray(self.query_of[first])

    def of_list(self, name: str) -> Floats:
        """Return a metric of `rankings.BY_QUERY` of each list, (lists,); nan where a list has none."""
        if name not in self._of_list:
            self._of_list[name] = self._rankings.metric(name)
        return self._of_list[name]

    @cached_property
    def _rankings(self) -> Rankings:
        return Rankings(self.list_of, self.truth, self.ranking, self.relevant)

    def _sum_and_count(self, name: str) -> Floats:
        """Return a metric's sum over the lists of each cluster, and how many have one: (clusters, 2)."""
        return self._summed(self.of_list(name))

    def _summed(self, values: Floats) -> Floats:
        """Return the sum over the lists of each cluster, and how many are not nan: (clusters, 2). values:
        (lists,)."""
        return np.stack([self._by_cluster(values), self._by_cluster(np.isfinite(values))], axis=1)

    def mean_over_lists(self, name: str, counts: Floats) -> Floats:
        """Return the mean of a metric of `rankings.BY_QUERY` over the lists of resamples.

        counts: (resamples, clusters), how often each cluster was drawn.
        """
        return _means(counts @ self._sum_and_count(name))[..., 0]

    def _by_cluster(self, of_list: NDArray[np.generic]) -> Floats:
        """Return the sum of each cluster's lists. of_list: (lists,); nan counts as 0."""
        clusters = self._query_of_list % self.clusters
        values = np.nan_to_num(of_list.astype(np.float64))
        return np.bincount(clusters, values, self.clusters).astype(np.float64)

    def _spearman(self, counts: Floats) -> Floats:
        """Return Spearman's correlation over all pairs of each resample; a pair that was drawn twice is
        two."""
        orders = [_Order.of(values) for values in (self.truth, self.ranking)]
        chunk = max(1, min(256, _NUMBERS // len(self.truth)))
        correlations = []
        for start in range(0, len(counts), chunk):
            weights = counts[start : start + chunk, self._cluster_of]
            total = positive(weights.sum(1, keepdims=True))
            left, right = (order.standard_ranks(weights, total) for order in orders)
            correlations.append((weights * left * right).sum(1) / total[:, 0])
        return np.concatenate(correlations)


def changes_of(before: MetricDraws, after: MetricDraws, counts: Floats) -> dict[str, Interval]:
    """Return the paired change of each metric with its interval."""
    return intervals_of({name: after[name] - before[name] for name in before}, counts, change=True)


def intervals_of(draws: MetricDraws, counts: Floats, *, change: bool = False) -> dict[str, Interval]:
    """Return each metric with its interval. counts: (1 + resamples, clusters), row 0 of ones.

    The intervals are symmetric, as far as the metric's range reaches, and `with_unseen` widens them for
    queries that are not in the sample.
    change: the draws are of differences of two metrics; two models that agree on every query differ by 0.
    """
    intervals = {}
    for name, drawn in draws.items():
        interval = estimate_of(drawn, counts).interval()
        low, high = RANGES.get(name, (0.0, 1.0))
        if change:
            high -= low
            low = -high
        elif np.isfinite(interval.low):
            interval = with_unseen(interval, drawn, low, high)
        intervals[name] = interval.within(low, high)
    return intervals


def with_unseen(interval: Interval, drawn: Draws, low: float, high: float) -> Interval:
    """Return the interval of a metric in [low, high], wide enough for queries that are not in the sample.

    If few queries pull the metric down, the bootstrap has next to nothing to draw from. Then the lower end is
    no higher than that of Gaffke (2005; Learned-Miller and Thomas 2020, https://arxiv.org/abs/1905.06208): it
    adds one query of the worst value and weighs all by Dirichlet's distribution; for shares, it is the end of
    Clopper and Pearson (1934). The upper end accordingly.
    """
    values = drawn.by_query()
    pulls = values - interval.value
    few = max(_FEW, _FEW_SHARE * len(values))
    if np.count_nonzero(pulls < -NO_SPREAD) < few:
        interval = replace(interval, low=min(interval.low, gaffke_bound(values, low, 0.025)))
    if np.count_nonzero(pulls > NO_SPREAD) < few:
        interval = replace(interval, high=max(interval.high, gaffke_bound(values, high, 0.975)))
    return interval


def positive(values: Floats) -> Floats:
    """Return the values with nan for those that are 0."""
    return np.where(values > 0, values, np.nan)


def _means(sums: Floats) -> Floats:
    """Return the means of sums and counts in turn, nan for a count of 0: (..., 2 · k) → (..., k)."""
    return np.asarray(sums[..., 0::2] / positive(sums[..., 1::2]))


class _Order(NamedTuple):
    """The ascending order of n values.

    group: (n,), which of the distinct values each one is. order: (n,), their indices, ascending. starts:
    where each distinct value begins in `order`.
    """

    group: Ints
    order: Ints
    starts: Ints

    @classmethod
    def of(cls, values: NDArray[np.generic]) -> _Order:
        """Return the order of values, (n,)."""
        _, group = np.unique(values, return_inverse=True)
        order = np.argsort(group, kind="stable")
        return cls(group, order, np.flatnonzero(np.diff(group[order], prepend=-1)))

    def standard_ranks(self, weights: Floats, total: Floats) -> Floats:
        """Return the values' ranks in each resample, scaled to mean 0 and variance 1: (resamples, n).

        Equal values share their mean rank. Resample r holds weights[r, i] copies of i, total[r] in all.
        """
        sizes = np.add.reduceat(weights[:, self.order], self.starts, axis=1)  # (resamples, distinct values)
        ranks = (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, self.group]
        ranks -= (ranks * weights).sum(1, keepdims=True) / total
        spread = np.sqrt((weights * ranks**2).sum(1, keepdims=True) / total)
        return np.asarray(ranks / np.where(spread > NO_SPREAD, spread, np.nan))
