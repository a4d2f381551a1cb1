"""Effects of masks with intervals and tests, on the bootstrap of models.quality.bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from models.quality import metrics
from models.quality.bootstrap import (
    MIN_QUERIES,
    MIN_TESTED,
    Draws,
    Estimate,
    Floats,
    estimate,
    resample,
    standard_errors,
    with_data,
)
from models.quality.evaluation import Evaluation
from models.study.base import Judged

METRICS = metrics.NAMES
"""accuracy, macro_f1, qwk, ndcg10."""

JUDGED = ("accuracy", "qwk", "ndcg10")
"""A mask is harmless if none of these falls by the margin."""

LEVEL = 0.05
"""The error rate of the tests."""

CLUSTERS = 1000
"""If there are more queries than this, they are put into this many groups, and groups are drawn: intervals
stay as good, and memory and time stop growing."""

_CHUNK = 4096  # permutations at a time


class Resamples:
    """The resamples of a study's queries. All masks share them, so differences are paired.

    counts: (1 + resamples, clusters); row 0 is the data as they are. testable: at least MIN_TESTED queries
    have titles of different grades, so that one-sided tests may claim something.
    """

    def __init__(self, data: Judged, resamples: int, seed: int) -> None:
        self.clusters = min(len(data.queries), CLUSTERS)
        self.cluster_of_query = np.arange(len(data.queries)) % self.clusters
        self.counts = with_data(resample(self.clusters, resamples, seed))
        self.testable = data.ranked_queries >= MIN_TESTED

    def sums(self, evaluation: Evaluation) -> Floats:
        """Return the evaluation's sums by cluster: (clusters, grades² + 2)."""
        if self.clusters == evaluation.queries:
            return evaluation.sums
        sums = np.zeros((self.clusters, evaluation.sums.shape[1]))
        np.add.at(sums, self.cluster_of_query, evaluation.sums)
        return sums

    def draws(self, evaluation: Evaluation) -> dict[str, Draws]:
        """Return each of METRICS on the data and on every resample.

        NDCG@10 has no influences, and so no error, if it rests on fewer than MIN_QUERIES clusters.
        """
        sums = self.sums(evaluation)
        values, slopes = metrics.values_and_gradients(self.counts @ sums, evaluation.grades)
        if self.ranked(evaluation) < MIN_QUERIES:
            slopes[:, METRICS.index("ndcg10")] = np.nan
        return {name: Draws(values[:, i], slopes[:, i] @ sums.T) for i, name in enumerate(METRICS)}

    def ranked(self, evaluation: Evaluation) -> int:
        """Return how many clusters NDCG@10 rests on: those with titles of different grades."""
        return int(np.count_nonzero(self.sums(evaluation)[:, -1]))

    def estimate(self, draws: Draws) -> Estimate:
        """Return the estimate of a metric, a difference or a relative change."""
        return estimate(draws.values, standard_errors(draws.influences, self.counts), testable=self.testable)


@dataclass(frozen=True)
class Effect:
    """The effect of a mask, by metric: its value, its change, and its change relative to the whole model."""

    value: dict[str, float]
    delta: dict[str, Estimate]
    relative: dict[str, Estimate]

    def is_harmless(self, margin: float) -> bool:
        """Return whether each of JUDGED is shown to fall by less than the margin (one-sided, LEVEL)."""
        return all(self.delta[metric].p_above(-margin) <= LEVEL for metric in JUDGED)


def effect(resamples: Resamples, whole: dict[str, Draws], masked: Evaluation) -> Effect:
    """Return the paired effect of a mask. whole: the draws of the model with all heads on."""
    after = resamples.draws(masked)
    return Effect(
        {name: float(after[name].values[0]) for name in METRICS},
        {name: resamples.estimate(after[name] - whole[name]) for name in METRICS},
        {name: resamples.estimate(after[name].relative_to(whole[name])) for name in METRICS},
    )


def swap_p(
    resamples: Resamples, whole: Evaluation, masked: Sequence[Evaluation], *, draws: int, seed: int
) -> Floats:
    """Return the two-sided p of no effect, by a paired permutation test over queries: (masks, METRICS).

    Under the null hypothesis, the predictions of a query with the mask and without it can be swapped. Each
    draw swaps those of a random half of the queries. All masks and metrics share the draws. An undefined
    metric has p = 1: there is no change to find.
    """
    rng = np.random.default_rng([seed, 1])
    before = resamples.sums(whole)
    after = [resamples.sums(evaluation) for evaluation in masked]
    grades = whole.grades
    observed = np.array(
        [metrics.values(x.sum(0), grades) - metrics.values(before.sum(0), grades) for x in after]
    )
    beyond = np.zeros_like(observed)
    for start in range(0, draws, _CHUNK):
        swapped = rng.integers(0, 2, (min(_CHUNK, draws - start), len(before))).astype(np.float64)
        for place, sums in enumerate(after):
            if (sums == before).all():
                beyond[place] += len(swapped)
                continue
            moved = swapped @ (sums - before)
            null = metrics.values(before.sum(0) + moved, grades) - metrics.values(sums.sum(0) - moved, grades)
            # Equal up to rounding counts as equal: with few queries many swaps give the very same change.
            beyond[place] += (np.abs(null) >= np.abs(observed[place]) - 1e-12).sum(0)
    beyond[~np.isfinite(observed)] = draws
    return np.asarray((1 + beyond) / (1 + draws))


def holm(p: Floats) -> Floats:
    """Return Holm's step-down adjusted p-values (1979), for any dependence between tests; same shape."""
    flat = np.asarray(p, np.float64).ravel()
    order = np.argsort(flat, kind="stable")
    adjusted = np.maximum.accumulate(flat[order] * np.arange(len(flat), 0, -1))
    result = np.empty(len(flat))
    result[order] = np.minimum(adjusted, 1)
    return result.reshape(np.shape(p))


def benjamini_hochberg(p: Floats) -> Floats:
    """Return Benjamini and Hochberg's adjusted p-values (1995), (heads, k), over the heads of each column."""
    return np.asarray(false_discovery_control(p, axis=0, method="bh"))


def benjamini_hochberg_by_head(p: Floats) -> Floats:
    """Return adjusted p-values of "the head changes no metric", (heads,), from p of (heads, metrics).

    A head's metrics are combined first (Bonferroni), so that a discovery is a head. Over all heads and
    metrics together, the share of false heads among the heads found could exceed that of false tests.
    """
    combined = np.minimum(np.min(p, axis=1) * np.shape(p)[1], 1)
    return benjamini_hochberg(combined[:, None])[:, 0]


def permutation_p(observed: float, null: NDArray[np.float64], *, two_sided: bool = False) -> float:
    """Return the share of values at least as extreme as the observed one, which counts too (Phipps and Smyth
    2010); nan if the observed value is nan."""
    if math.isnan(observed):
        return math.nan
    values, value = (np.abs(null), abs(observed)) if two_sided else (np.asarray(null), observed)
    return float((1 + np.count_nonzero(values >= value)) / (1 + len(values)))


def equivalence_p(change: Estimate, margin: float) -> float:
    """Return the p of two one-sided tests (Schuirmann 1987) that the change is within ± margin."""
    return max(change.p_above(-margin), change.p_below(margin))


def mean_intervals(values: Floats, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """Return the 95 % symmetric bootstrap-t intervals of means over queries.

    (queries, k) → low and high, (k,) each; nan if there are fewer than two queries.
    """
    queries = len(values)
    if queries < 2:
        nothing = np.full(values.shape[1], np.nan)
        return nothing, nothing
    counts = with_data(resample(queries, resamples, seed))
    means = counts @ values / queries
    errors = np.sqrt(np.maximum(counts @ values**2 / queries - means**2, 0) / (queries - 1))
    smallest = errors[0] / 4  # models.quality.bootstrap has the same floor
    with np.errstate(invalid="ignore", divide="ignore"):
        distances = np.abs(means[1:] - means[0]) / np.maximum(errors[1:], smallest)
    reach = np.quantile(np.nan_to_num(distances), 0.95, axis=0) * errors[0]
    return means[0] - reach, means[0] + reach
