"""How good are the grades? Metrics on judged pairs, with intervals by cluster bootstrap over queries.

Every metric is a function of sums over queries, so that a resample of the queries is a row of counts and all
resamples are computed in a few matrix products. Two evaluations of the same pairs share their resamples: the
interval of their difference is the paired one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CALIBRATION_BINS = 15
CUTOFF = 10
"""NDCG looks at this many titles of a query."""

_CHUNK = 256  # resamples at a time: spearman holds (chunk, pairs)


@dataclass(frozen=True, slots=True)
class Interval:
    """A metric's value and the 2.5 % and 97.5 % points of its bootstrap distribution."""

    value: float
    low: float
    high: float


class Evaluation:
    """Graded predictions beside the truth.

    queries: of each of n pairs; truth: (n,) grades from 0; probabilities: (n, grades), rows sum to 1.
    """

    def __init__(
        self, queries: Sequence[str], truth: Sequence[int], probabilities: NDArray[np.floating]
    ) -> None:
        if not len(queries) == len(truth) == len(probabilities) > 0:
            raise ValueError("queries, truth and probabilities must be of one length, at least 1")
        self.truth: Ints = np.asarray(truth, np.int64)
        self.probabilities: Floats = np.asarray(probabilities, np.float64)
        self.grades = self.probabilities.shape[1]
        numbers: dict[str, int] = {}
        self.query_of: Ints = np.array([numbers.setdefault(query, len(numbers)) for query in queries])
        self.queries = len(numbers)
        self.expected: Floats = self.probabilities @ np.arange(self.grades)
        self.predicted: Ints = self.probabilities.argmax(1)

    def metrics(self) -> dict[str, float]:
        """The metrics on the pairs as they are."""
        values = self.resampled(np.ones((1, self.queries)))
        return {name: float(value[0]) for name, value in values.items()}

    def random_order_ndcg10(self) -> float:
        """The expected NDCG@10 of a random order, exactly: every place expects its query's mean gain."""
        values = []
        for places in self._ranked_queries:
            gains = _gain(self.truth[places])
            discounts = 1 / np.log2(np.arange(2, min(len(places), CUTOFF) + 2))
            values.append(gains.mean() * discounts.sum() / _dcg(np.sort(gains)[::-1]))
        return float(np.mean(values)) if values else float("nan")

    def resampled(self, counts: Floats) -> dict[str, Floats]:
        """The metrics where query q is there counts[r, q] times: (resamples, queries) → (resamples,) each.

        accuracy; macro_f1 over the grades that occur; qwk (quadratic weighted kappa); spearman of expected
        grade and truth; ndcg10 (gain 2^grade − 1) over queries with titles of different grades; ece.
        """
        confusion = (counts @ self._confusion).reshape(-1, self.grades, self.grades)  # [truth, predicted]
        total = confusion.sum((1, 2))
        ndcg, has_ndcg = self._ndcg
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                "accuracy": np.trace(confusion, axis1=1, axis2=2) / total,
                "macro_f1": _macro_f1(confusion),
                "qwk": _quadratic_kappa(confusion),
                "spearman": self._spearman(counts),
                "ndcg10": counts @ ndcg / (counts @ has_ndcg),
                "ece": np.abs(counts @ self._calibration).sum(1) / total,
            }

    @cached_property
    def _confusion(self) -> Floats:
        """(queries, grades²): how often each truth met each prediction."""
        flat = np.zeros((self.queries, self.grades**2))
        np.add.at(flat, (self.query_of, self.truth * self.grades + self.predicted), 1)
        return flat

    @cached_property
    def _calibration(self) -> Floats:
        """(queries, bins): sum of confidence minus correctness (Guo et al. 2017, equal-width bins)."""
        confidence = self.probabilities.max(1)
        bins = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        sums = np.zeros((self.queries, CALIBRATION_BINS))
        np.add.at(sums, (self.query_of, bins), confidence - (self.predicted == self.truth))
        return sums

    @cached_property
    def _ranked_queries(self) -> list[Ints]:
        """The places of each query whose titles differ in grade."""
        order = np.argsort(self.query_of, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(self.query_of[order])) + 1)
        return [group for group in groups if len(np.unique(self.truth[group])) > 1]

    @cached_property
    def _ndcg(self) -> tuple[Floats, Floats]:
        """NDCG@10 of each query, and 1 where it has one; ties in the prediction share their places' gain."""
        values, present = np.zeros(self.queries), np.zeros(self.queries)
        for places in self._ranked_queries:
            gains = _gain(self.truth[places])
            query = self.query_of[places[0]]
            values[query] = _dcg(_tied(gains, self.expected[places])) / _dcg(np.sort(gains)[::-1])
            present[query] = 1
        return values, present

    def _spearman(self, counts: Floats) -> Floats:
        parts = [counts[start : start + _CHUNK] for start in range(0, len(counts), _CHUNK)]
        return np.concatenate([self._spearman_of(part[:, self.query_of]) for part in parts])

    def _spearman_of(self, weights: Floats) -> Floats:
        left, right = (_weighted_ranks(v, weights) for v in (self.truth.astype(np.float64), self.expected))
        total = weights.sum(1, keepdims=True)
        left -= (left * weights).sum(1, keepdims=True) / total
        right -= (right * weights).sum(1, keepdims=True) / total
        scale = np.sqrt((weights * left**2).sum(1) * (weights * right**2).sum(1))
        return np.asarray((weights * left * right).sum(1) / scale)


def intervals(evaluation: Evaluation, *, resamples: int = 2000, seed: int = 0) -> dict[str, Interval]:
    """Each metric with its 95 % interval."""
    values = evaluation.metrics()
    drawn = evaluation.resampled(resample(evaluation.queries, resamples, seed))
    return {name: _interval(value, drawn[name]) for name, value in values.items()}


def differences(
    first: Evaluation, second: Evaluation, *, resamples: int = 2000, seed: int = 0
) -> dict[str, Interval]:
    """Each metric of `second` minus that of `first`, on the same pairs and the same resamples."""
    if not np.array_equal(first.query_of, second.query_of) or not np.array_equal(first.truth, second.truth):
        raise ValueError("the two evaluations are not of the same pairs")
    before, after = first.metrics(), second.metrics()
    counts = resample(first.queries, resamples, seed)
    drawn_before, drawn_after = first.resampled(counts), second.resampled(counts)
    return {
        name: _interval(after[name] - before[name], drawn_after[name] - drawn_before[name]) for name in before
    }


def resample(queries: int, resamples: int, seed: int) -> Floats:
    """How often each query is in each resample: (resamples, queries), rows sum to `queries`."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(queries, np.full(queries, 1 / queries), size=resamples).astype(np.float64)


def _interval(value: float, drawn: Floats) -> Interval:
    finite = drawn[np.isfinite(drawn)]
    if not len(finite):
        return Interval(value, float("nan"), float("nan"))
    low, high = np.quantile(finite, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def _macro_f1(confusion: Floats) -> Floats:
    right = np.diagonal(confusion, axis1=1, axis2=2)
    occurs = confusion.sum(2) > 0
    f1 = 2 * right / (confusion.sum(1) + confusion.sum(2))
    return np.asarray(np.where(occurs, f1, 0).sum(1) / occurs.sum(1))


def _quadratic_kappa(confusion: Floats) -> Floats:
    """Cohen's kappa with squared distances (Cohen 1968): 1 is agreement, 0 chance."""
    grades = np.arange(confusion.shape[1])
    distance = (grades[:, None] - grades) ** 2
    observed = (confusion * distance).sum((1, 2))
    chance = np.einsum("rt,rp,tp->r", confusion.sum(2), confusion.sum(1), distance) / confusion.sum((1, 2))
    return np.asarray(np.where(chance > 0, 1 - observed / chance, 0))


def _gain(grades: Ints) -> Floats:
    return np.exp2(grades.astype(np.float64)) - 1


def _dcg(gains: Floats) -> float:
    top = gains[:CUTOFF]
    return float((top / np.log2(np.arange(2, len(top) + 2))).sum())


def _tied(gains: Floats, scores: Floats) -> Floats:
    """Gains in the order of the scores; titles of equal score each get their mean (McSherry, Najork 2008)."""
    order = np.argsort(-scores, kind="stable")
    _, group, sizes = np.unique(-scores[order], return_inverse=True, return_counts=True)
    return np.asarray((np.bincount(group, gains[order]) / sizes)[group])


def _weighted_ranks(values: Floats, weights: Floats) -> Floats:
    """Mean ranks of `values` (n,) where value i is there weights[r, i] times: (resamples, n)."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(weights[:, order], starts, axis=1)  # (resamples, distinct values)
    return np.asarray((np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, group])


def as_json(metrics: Mapping[str, Interval]) -> dict[str, dict[str, float]]:
    """Intervals as plain numbers."""
    return {
        name: {"value": found.value, "low": found.low, "high": found.high} for name, found in metrics.items()
    }
