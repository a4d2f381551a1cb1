"""Metrics of graded predictions on judged pairs, with intervals by cluster bootstrap over queries.

Two evaluations of the same pairs share their resamples, so the interval of their difference is paired.
headroom.models.quality.bootstrap says how intervals are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from headroom.models.arrays import Floats, Ints
from headroom.models.files import Json
from headroom.models.quality import bootstrap, metrics
from headroom.models.quality.bootstrap import (
    MIN_QUERIES,
    Draws,
    Interval,
    MetricDraws,
    estimate,
    resample,
    standard_errors,
)
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.metrics import CUTOFF, dcg, gain, ndcg10

if TYPE_CHECKING:
    from headroom.models.classifier import Scores

RANGES = {
    "qwk": (-1.0, 1.0),
    "spearman": (-1.0, 1.0),
    "query_spearman": (-1.0, 1.0),
    "log_loss": (0.0, float("inf")),
}
"""The range of a metric; 0 to 1 for any other."""

CLUSTERS = 1000
"""If there are more queries than this, they are put into this many groups, and groups are drawn: intervals
stay as good, and memory and time stop growing."""

_NO_SPREAD = 1e-9
"""Values that differ spread by more than this; less is rounding, of values that are all equal."""

_BINS = 15
"""How many bins of equal width the calibration error sorts the likeliest grades' probabilities into."""

_SMALLEST = 1e-9
"""Probabilities below this count as this in the log loss."""

_CHUNK = 256  # resamples at a time; Spearman needs (chunk, pairs) numbers


class Evaluation:
    """Graded predictions and the true grades.

    pairs: n, with their true grades. probabilities: (n, grades), rows sum to 1.
    ranking: (n,) what ranks the pairs, a model's `Scores.raw_score`; its probabilities round to 1 and 0.
    clusters: how many groups of queries are resampled, all queries if there are at most CLUSTERS.
    """

    def __init__(
        self,
        pairs: Sequence[LabelledPair],
        probabilities: NDArray[np.floating],
        ranking: NDArray[np.floating],
    ) -> None:
        self.truth: Ints = np.array([pair.grade for pair in pairs], np.int64)
        self.probabilities: Floats = np.asarray(probabilities, np.float64)
        self.grades = self.probabilities.shape[1]
        numbers = {query: number for number, query in enumerate(dict.fromkeys(pair.query for pair in pairs))}
        self.query_of: Ints = np.array([numbers[pair.query] for pair in pairs])
        self.queries = len(numbers)
        self.clusters = min(self.queries, CLUSTERS)
        self._cluster_of = self.query_of % self.clusters
        self.expected: Floats = self.probabilities @ np.arange(self.grades)
        self.ranking: Floats = np.asarray(ranking, np.float64)
        self.predicted: Ints = self.probabilities.argmax(1)

    @classmethod
    def of(cls, pairs: Sequence[LabelledPair], scores: Scores) -> Self:
        """Return the evaluation of a model's scores of the pairs."""
        return cls(pairs, scores.probabilities, scores.raw_score)

    def metrics(self) -> dict[str, float]:
        """Return the metrics on the pairs."""
        values = self.resampled(np.ones((1, self.clusters)))
        return {name: float(value[0]) for name, value in values.items()}

    def random_order_ndcg10(self) -> float:
        """Return the exact expected NDCG@10 of a random order: each rank expects its query's mean gain."""
        values = []
        for rows in self.ranked_queries:
            gains = gain(self.truth[rows])
            discounts = 1 / np.log2(np.arange(2, min(len(rows), CUTOFF) + 2))
            values.append(gains.mean() * discounts.sum() / dcg(np.sort(gains)[::-1]))
        return float(np.mean(values)) if values else float("nan")

    def resampled(self, counts: Floats) -> dict[str, Floats]:
        """Return the metrics of resamples that hold cluster c counts[r, c] times: (resamples,) each.

        accuracy; macro_f1 over the grades that occur; qwk (quadratic weighted kappa); ndcg10 (gain
        2^grade − 1) and query_spearman, means over queries with titles of different grades; spearman of
        expected grade and truth over all pairs; ece, the expected calibration error (Guo et al. 2017).
        """
        metrics = self.of_grades(counts)
        correlations = counts @ self._by_cluster(self.by_query["query_spearman"])
        ranked_queries = counts @ self.sums[:, -1]
        metrics["query_spearman"] = correlations / _positive(ranked_queries)
        metrics["spearman"] = self._spearman(counts)
        likeliest = self.probabilities.max(1)
        bins = np.minimum((likeliest * _BINS).astype(np.int64), _BINS - 1)
        gaps = np.zeros((self.clusters, _BINS))
        np.add.at(gaps, (self._cluster_of, bins), likeliest - (self.predicted == self.truth))
        pairs = counts @ np.bincount(self._cluster_of, minlength=self.clusters)
        metrics["ece"] = np.abs(counts @ gaps).sum(1) / _positive(pairs)
        return metrics

    def reliability(self, counts: Floats) -> dict[str, Floats]:
        """Return how far probabilities are from shares on resamples, as `resampled` does.

        classwise_ece: the calibration error of each grade's probability, averaged over the grades (Kull et
        al. 2019, https://arxiv.org/abs/1910.12656); of two grades, that of P(relevant). log_loss: the mean
        negative log-likelihood, probabilities at least 10⁻⁹.
        """
        pairs = _positive(counts @ np.bincount(self._cluster_of, minlength=self.clusters))
        errors = np.zeros(len(counts))
        for grade in range(self.grades):
            probabilities = self.probabilities[:, grade]
            bins = np.minimum((probabilities * _BINS).astype(np.int64), _BINS - 1)
            gaps = np.zeros((self.clusters, _BINS))
            np.add.at(gaps, (self._cluster_of, bins), probabilities - (self.truth == grade))
            errors += np.abs(counts @ gaps).sum(1) / pairs
        of_truth = self.probabilities[np.arange(len(self.truth)), self.truth]
        losses = -np.log(np.maximum(of_truth, _SMALLEST))
        of_cluster = np.bincount(self._cluster_of, losses, self.clusters)
        return {"classwise_ece": errors / self.grades, "log_loss": counts @ of_cluster / pairs}

    def reliability_bins(self, grade: int, bins: int = 10) -> list[Json]:
        """Return the reliability diagram of a grade's probability: each bin with pairs, its ends, the number
        of pairs, their mean probability and the share that has the grade."""
        probabilities = self.probabilities[:, grade]
        bin_of = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
        table: list[Json] = []
        for index in np.unique(bin_of).tolist():
            rows = bin_of == index
            table.append(
                {
                    "low": index / bins,
                    "high": (index + 1) / bins,
                    "pairs": int(rows.sum()),
                    "probability": float(probabilities[rows].mean()),
                    "share": float((self.truth[rows] == grade).mean()),
                }
            )
        return table

    def of_grades(self, counts: Floats) -> dict[str, Floats]:
        """Return the metrics of `metrics.NAMES` alone, which take a fraction of the time."""
        values = metrics.values(counts @ self.sums, self.grades)
        return dict(zip(metrics.NAMES, values.T, strict=True))

    def draws(
        self, counts: Floats, statistics: Callable[[Floats], dict[str, Floats]] | None = None
    ) -> MetricDraws:
        """Return the metrics on the data and on resamples. counts: (1 + resamples, clusters), row 0 of ones.

        statistics: `resampled` or `of_grades`. A metric that rests on fewer than MIN_QUERIES queries has no
        error.
        """
        draws = bootstrap.draws(statistics or self.resampled, counts)
        for name, drawn in draws.items():
            ranks = name in ("ndcg10", "query_spearman")
            queries = len(self.ranked_queries) if ranks else self.queries
            influences = (
                drawn.influences if queries >= MIN_QUERIES else np.full_like(drawn.influences, np.nan)
            )
            draws[name] = Draws(drawn.values, influences, queries)
        return draws

    @cached_property
    def sums(self) -> Floats:
        """Return (clusters, grades² + 2): counts of (truth, prediction); NDCG@10; the queries that have
        one."""
        sums = np.zeros((self.clusters, self.grades**2 + 2))
        np.add.at(sums, (self._cluster_of, self.truth * self.grades + self.predicted), 1)
        sums[:, -2] = self._by_cluster(self.by_query["ndcg10"])
        sums[:, -1] = self._by_cluster(np.isfinite(self.by_query["ndcg10"]).astype(np.float64))
        return sums

    @cached_property
    def ranked_queries(self) -> list[Ints]:
        """Return the pair indices of each query whose titles differ in grade."""
        order = np.argsort(self.query_of, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(self.query_of[order])) + 1)
        return [group for group in groups if len(np.unique(self.truth[group])) > 1]

    @property
    def confusion(self) -> Ints:
        """Return how many pairs of each grade (row) got each grade (column): (grades, grades)."""
        return np.asarray(self.sums[:, :-2].sum(0).reshape(self.grades, self.grades), np.int64)

    @property
    def calibration(self) -> dict[str, list[float]]:
        """Return each grade's mean probability and its share of the pairs.

        The expected calibration error looks at the likeliest grade alone: a model may look well there and
        give a grade half of its share.
        """
        shares = np.bincount(self.truth, minlength=self.grades) / len(self.truth)
        return {"mean_probabilities": self.probabilities.mean(0).tolist(), "shares": shares.tolist()}

    @cached_property
    def by_query(self) -> dict[str, Floats]:
        """Return ndcg10 and query_spearman of each query, (queries,); nan if its titles have one grade.

        Titles of equal score share their gain. The correlation is 0 if all have one score: it puts none
        before another.
        """
        gains = np.full(self.queries, np.nan)
        correlations = gains.copy()
        for rows in self.ranked_queries:
            query = self.query_of[rows[0]]
            truth = self.truth[rows]
            ranking = self.ranking[rows]
            gains[query] = ndcg10(truth, ranking)
            correlations[query] = 0
            if np.ptp(ranking) > 0:
                correlations[query] = np.corrcoef(rankdata(truth), rankdata(ranking))[0, 1]
        return {"ndcg10": gains, "query_spearman": correlations}

    def _by_cluster(self, of_query: Floats) -> Floats:
        """Return the sum of each cluster's queries. of_query: (queries,); nan counts as 0."""
        clusters = np.arange(self.queries) % self.clusters
        return np.bincount(clusters, np.nan_to_num(of_query), self.clusters).astype(np.float64)

    def _spearman(self, counts: Floats) -> Floats:
        """Return Spearman's correlation over all pairs of each resample; a pair that was drawn twice is
        two."""
        correlations = []
        for start in range(0, len(counts), _CHUNK):
            weights = counts[start : start + _CHUNK, self._cluster_of]
            total = _positive(weights.sum(1, keepdims=True))
            left, right = (_standard_ranks(values, weights, total) for values in (self.truth, self.ranking))
            correlations.append((weights * left * right).sum(1) / total[:, 0])
        return np.concatenate(correlations)


def intervals(evaluation: Evaluation, *, resamples: int, seed: int) -> dict[str, Interval]:
    """Return each metric with its 95 % interval."""
    counts = resample(evaluation.clusters, resamples, seed)
    return intervals_of(evaluation.draws(counts), counts)


def changes_of(before: MetricDraws, after: MetricDraws, counts: Floats) -> dict[str, Interval]:
    """Return the paired change of each metric with its interval."""
    return intervals_of({name: after[name] - before[name] for name in before}, counts, change=True)


def intervals_of(draws: MetricDraws, counts: Floats, *, change: bool = False) -> dict[str, Interval]:
    """Return each metric with its interval. counts: (1 + resamples, clusters), row 0 of ones.

    The intervals are symmetric, as far as the metric's range reaches. If every query has the best value, or
    the worst, the bootstrap has nothing to draw from. Then the interval allows for the queries that are not
    in the sample: for accuracy, one pair a query, it is that of Clopper and Pearson (1934).
    change: the draws are of differences of two metrics; two models that agree on every query differ by 0.
    """
    intervals = {}
    for name, drawn in draws.items():
        estimated = estimate(drawn.values, standard_errors(drawn.influences, counts))
        interval = estimated.interval()
        value = interval.value
        low, high = RANGES.get(name, (0.0, 1.0))
        if change:
            high -= low
            low = -high
        elif estimated.error < _NO_SPREAD and drawn.queries and np.isclose(value, [low, high]).any():
            unseen = 1 - 0.025 ** (1 / drawn.queries)  # the largest share of other queries
            interval = Interval(value, value - unseen * (value - low), value + unseen * (high - value))
        intervals[name] = interval.within(low, high)
    return intervals


def _positive(values: Floats) -> Floats:
    """Return the values with nan for those that are 0."""
    return np.where(values > 0, values, np.nan)


def _standard_ranks(values: NDArray[np.generic], weights: Floats, total: Floats) -> Floats:
    """Return the ranks of values (n,) in each resample, scaled to mean 0 and variance 1: (resamples, n).

    Equal values share their mean rank. Resample r holds weights[r, i] copies of i, total[r] in all.
    """
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)  # (resamples, distinct values)
    ranks = (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group]
    ranks -= (ranks * weights).sum(1, keepdims=True) / total
    spread = np.sqrt((weights * ranks**2).sum(1, keepdims=True) / total)
    return np.asarray(ranks / np.where(spread > _NO_SPREAD, spread, np.nan))
