"""Effects of masks with intervals and tests; the bootstrap itself is in models.quality.bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.quality import metrics
from models.quality.bootstrap import Draws, Estimate, Floats, estimate, resample, standard_errors, with_data
from models.quality.evaluation import Evaluation
from models.study.base import Judged

METRICS = metrics.NAMES
"""accuracy, macro_f1, qwk, ndcg10."""

CLUSTERS = 1000
"""Above this many queries, whole queries are put into this many groups, and groups are drawn: intervals
stay as good, and memory and time stop growing."""

_CHUNK = 4096  # permutations at a time


class Resamples:
    """The resamples of one study's queries, which every mask shares: differences are paired.

    counts: (1 + resamples, clusters), row 0 the data as they are.
    """

    def __init__(self, data: Judged, resamples: int, seed: int) -> None:
        self.clusters = min(len(data.queries), CLUSTERS)
        self.cluster_of_query = np.arange(len(data.queries)) % self.clusters
        self.counts = with_data(resample(self.clusters, resamples, seed))

    def sums(self, evaluation: Evaluation) -> Floats:
        """The evaluation's sums by cluster: (clusters, grades² + 2)."""
        if self.clusters == evaluation.queries:
            return evaluation.sums
        sums = np.zeros((self.clusters, evaluation.sums.shape[1]))
        np.add.at(sums, self.cluster_of_query, evaluation.sums)
        return sums

    def draws(self, evaluation: Evaluation) -> dict[str, Draws]:
        """Each of METRICS on the data and on every resample."""
        sums = self.sums(evaluation)
        values, slopes = metrics.values_and_gradients(self.counts @ sums, evaluation.grades)
        return {name: Draws(values[:, i], slopes[:, i] @ sums.T) for i, name in enumerate(METRICS)}

    def estimate(self, draws: Draws) -> Estimate:
        """The estimate of a metric, a difference or a relative change."""
        return estimate(draws.values, standard_errors(draws.influences, self.counts))


@dataclass(frozen=True)
class Effect:
    """What a mask does to the metrics: by name, the change and the change relative to the whole model."""

    value: dict[str, float]
    delta: dict[str, Estimate]
    relative: dict[str, Estimate]


def effect(resamples: Resamples, whole: dict[str, Draws], masked: Evaluation) -> Effect:
    """The paired effect of a mask; whole: the draws of the model with all heads on."""
    after = resamples.draws(masked)
    return Effect(
        {name: float(after[name].values[0]) for name in METRICS},
        {name: resamples.estimate(after[name] - whole[name]) for name in METRICS},
        {name: resamples.estimate(after[name].relative_to(whole[name])) for name in METRICS},
    )


def swap_p(
    resamples: Resamples, whole: Evaluation, masked: Sequence[Evaluation], *, draws: int, seed: int
) -> Floats:
    """Two-sided p of no effect, by a paired permutation test over queries: (masks, METRICS).

    Under the null a query's two sets of predictions, with the mask and without, could be swapped; each draw
    swaps those of a random half of the queries. All masks and metrics share the draws.
    """
    rng = np.random.default_rng([seed, 1])
    before = resamples.sums(whole)
    after = [resamples.sums(evaluation) for evaluation in masked]
    grades = whole.grades
    seen = np.array([metrics.values(x.sum(0), grades) - metrics.values(before.sum(0), grades) for x in after])
    beyond = np.zeros_like(seen)
    for start in range(0, draws, _CHUNK):
        swapped = rng.integers(0, 2, (min(_CHUNK, draws - start), len(before))).astype(np.float64)
        for place, sums in enumerate(after):
            if (sums == before).all():
                beyond[place] += len(swapped)
                continue
            moved = swapped @ (sums - before)
            null = metrics.values(before.sum(0) + moved, grades) - metrics.values(sums.sum(0) - moved, grades)
            # Equal up to rounding counts as equal: with few queries many swaps give the very same change.
            beyond[place] += (np.abs(null) >= np.abs(seen[place]) - 1e-12).sum(0)
    return np.asarray((1 + beyond) / (1 + draws))


def holm(p: Floats) -> Floats:
    """Holm's step-down adjusted p-values (1979): familywise error, whatever the dependence; same shape."""
    flat = np.asarray(p, np.float64).ravel()
    order = np.argsort(flat, kind="stable")
    adjusted = np.maximum.accumulate(flat[order] * np.arange(len(flat), 0, -1))
    result = np.empty(len(flat))
    result[order] = np.minimum(adjusted, 1)
    return result.reshape(np.shape(p))


def benjamini_hochberg(p: Floats) -> Floats:
    """Benjamini and Hochberg's adjusted p-values (1995): the false discovery rate; same shape."""
    flat = np.asarray(p, np.float64).ravel()
    order = np.argsort(flat, kind="stable")[::-1]
    count = len(flat)
    adjusted = np.minimum.accumulate(flat[order] * count / np.arange(count, 0, -1))
    result = np.empty(count)
    result[order] = np.minimum(adjusted, 1)
    return result.reshape(np.shape(p))


def permutation_p(observed: float, null: NDArray[np.float64], *, two_sided: bool = False) -> float:
    """The share of draws at least as extreme as what was seen, itself counted (Phipps, Smyth 2010)."""
    values, seen = (np.abs(null), abs(observed)) if two_sided else (np.asarray(null), observed)
    return float((1 + np.count_nonzero(values >= seen)) / (1 + len(values)))


def equivalence_p(change: Estimate, margin: float) -> float:
    """p of two one-sided tests (Schuirmann 1987) that the change is within ± margin."""
    return max(change.p_above(-margin), change.p_below(margin))
