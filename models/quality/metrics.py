"""Metrics of a query's ranking, metrics of counted grades, and which of them judge which kind of model.

Titles of equal relevance share what their places give: a metric is its mean over all orders of theirs
(McSherry and Najork 2008, "Computing information retrieval performance measures efficiently in the presence
of tied scores").
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from headroom.models.arrays import Bools, Floats, Ints

CUTOFF = 10
"""How many titles of a query, the first ones, NDCG, MRR and recall look at."""


@dataclass(frozen=True, slots=True)
class Measures:
    """The metrics by which a study judges a kind of model.

    names: all of them, in the order of reports. main: the one that orders heads and layers. judged: a mask is
    harmless if none of these falls by the margin. tested: a network must be non-inferior in each of these, an
    intersection–union test, which needs no correction (Berger 1982). share: the one that is a share of right
    answers, whose relative change is told beside published ones of accuracy.
    """

    names: tuple[str, ...]
    main: str
    judged: tuple[str, ...]
    tested: tuple[str, ...]
    share: str


GRADED = Measures(
    names=("accuracy", "macro_f1", "qwk", "ndcg10"),
    main="qwk",
    judged=("accuracy", "qwk", "ndcg10"),
    tested=("qwk", "ndcg10"),
    share="accuracy",
)
"""Of a classifier with grades."""

RANKED = Measures(
    names=("ndcg10", "mrr10", "pair_accuracy", "query_spearman"),
    main="ndcg10",
    judged=("ndcg10",),
    tested=("ndcg10",),
    share="pair_accuracy",
)
"""Of a cross-encoder with one score, which has an order and no grades."""

NAMES = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "qwk": "QWK",
    "ndcg10": "NDCG@10",
    "mrr10": "MRR@10",
    "map": "MAP",
    "recall10": "recall@10",
    "pair_accuracy": "pair accuracy",
    "query_spearman": "Spearman within queries",
    "spearman": "Spearman",
    "ece": "calibration error",
}
"""The names of the metrics in texts."""


def values(sums: Floats, grades: int) -> Floats:
    """Return accuracy, macro-F1 and QWK of added-up counts: (..., grades²) → (..., 3).

    sums: how often each true grade met each predicted grade, truth first. macro-F1 is over the grades that
    occur; QWK is the quadratic weighted kappa (Cohen 1968): 1 is agreement, 0 chance, and 0 if only one grade
    occurs.
    """
    confusion = sums.reshape(*sums.shape[:-1], grades, grades)  # [truth, predicted]
    right = np.einsum("...ii->...i", confusion)  # einsum, because .sum is slow over short axes
    truth = np.einsum("...ij->...i", confusion)
    predicted = np.einsum("...ij->...j", confusion)
    total = np.einsum("...i->...", truth)
    accuracy = np.einsum("...i->...", right) / np.where(total > 0, total, np.nan)

    occurs = truth > 0
    f1 = 2 * right / np.maximum(truth + predicted, 1)  # 0 for a grade that does not occur
    macro_f1 = np.einsum("...i->...", f1) / np.maximum(occurs.sum(-1), 1)

    distance = np.square(np.subtract.outer(np.arange(grades), np.arange(grades))).astype(np.float64)
    observed = np.einsum("...ij,ij->...", confusion, distance)
    chance = np.einsum("...i,...i->...", truth @ distance, predicted) / np.maximum(total, 1)
    qwk = np.where(chance > 0, 1 - observed / np.where(chance > 0, chance, 1), 0)
    return np.stack([accuracy, macro_f1, qwk], -1)


def ndcg10(truth: Ints, relevance: Floats) -> float:
    """Return the NDCG@10 of a query's titles ranked by relevance, with a gain of 2^grade − 1 (Järvelin and
    Kekäläinen 2002; Burges et al. 2005).

    truth: (n,) grades from 0, not all of them 0. relevance: (n,), higher comes first.
    """
    gains = gain(truth)
    order = np.argsort(-relevance, kind="stable")
    _, group, sizes = np.unique(-relevance[order], return_inverse=True, return_counts=True)
    tied = (np.bincount(group, gains[order]) / sizes)[group]
    return float(dcg(tied) / dcg(np.sort(gains)[::-1]))


def gain(grades: Ints) -> Floats:
    """Return 2^grade − 1 of each grade, (n,)."""
    return np.exp2(grades.astype(np.float64)) - 1


def dcg(gains: Floats) -> float:
    """Return the sum of gains in rank order, (n,), each divided by log2(rank + 1), up to the cutoff."""
    top = gains[:CUTOFF]
    return float((top / np.log2(np.arange(2, len(top) + 2))).sum())


@dataclass(frozen=True, slots=True)
class _Ties:
    """The groups of titles of equal relevance, in rank order.

    before: how many titles stand before each group; sizes: how many it has; relevant: how many of them are
    relevant.
    """

    before: Ints
    sizes: Ints
    relevant: Ints

    @classmethod
    def of(cls, relevant: Bools, relevance: Floats) -> "_Ties":
        _, group, sizes = np.unique(-relevance, return_inverse=True, return_counts=True)
        counts = np.bincount(group, relevant, len(sizes)).astype(np.int64)
        return cls(np.cumsum(sizes) - sizes, sizes, counts)


def mrr10(relevant: Bools, relevance: Floats) -> float:
    """Return 1 / rank of the first relevant title, 0 if it is not among the first ten.

    relevant: (n,), at least one. relevance: (n,), higher comes first.
    """
    ties = _Ties.of(relevant, relevance)
    first = int(np.flatnonzero(ties.relevant)[0])
    before = int(ties.before[first])
    size = int(ties.sizes[first])
    count = int(ties.relevant[first])
    mean = 0.0
    for place in range(1, min(size - count + 1, CUTOFF - before) + 1):
        chance = comb(size - place, count - 1) / comb(size, count)  # the first of them stands at this place
        mean += chance / (before + place)
    return mean


def average_precision(relevant: Bools, relevance: Floats) -> float:
    """Return the mean over the relevant titles of the precision at their ranks; arguments as in `mrr10`."""
    ties = _Ties.of(relevant, relevance)
    relevant_before = np.repeat(np.cumsum(ties.relevant) - ties.relevant, ties.sizes)
    size = np.repeat(ties.sizes, ties.sizes)
    count = np.repeat(ties.relevant, ties.sizes)
    ranks = np.arange(1, len(relevance) + 1)
    earlier_of_group = ranks - 1 - np.repeat(ties.before, ties.sizes)
    others = earlier_of_group * (count - 1) / np.maximum(size - 1, 1)  # relevant ones of its group before it
    precisions = (relevant_before + others + 1) / ranks
    return float((count / size * precisions).sum() / ties.relevant.sum())


def recall10(relevant: Bools, relevance: Floats) -> float:
    """Return the share of the relevant titles that are among the first ten; arguments as in `mrr10`."""
    ties = _Ties.of(relevant, relevance)
    within = np.clip(CUTOFF - ties.before, 0, ties.sizes)
    return float((ties.relevant * within / ties.sizes).sum() / ties.relevant.sum())


def pair_accuracy(truth: Ints, relevance: Floats) -> float:
    """Return the share of two titles of different grades that are in the right order; equal ones count half.

    truth: (n,), not all equal. relevance: (n,), higher comes first.
    """
    right = 0.0
    for grade in np.unique(truth)[1:]:
        lower = np.sort(relevance[truth < grade])
        higher = relevance[truth == grade]
        below = np.searchsorted(lower, higher, "left") + np.searchsorted(lower, higher, "right")
        right += below.sum() / 2
    return float(right / pairs_in_order(truth))


def pairs_in_order(truth: Ints) -> int:
    """Return how many pairs of titles differ in grade. truth: (n,)."""
    counts = np.unique(truth, return_counts=True)[1]
    return int((counts.sum() ** 2 - (counts**2).sum()) // 2)


def spearman(truth: Ints, relevance: Floats) -> float:
    """Return the rank correlation of a query's titles; 0 if all have one relevance, which is no order.

    truth: (n,), not all equal. relevance: (n,).
    """
    if np.ptp(relevance) == 0:
        return 0.0
    from scipy.stats import rankdata  # replicas need NDCG alone, and no scipy

    return float(np.corrcoef(rankdata(truth), rankdata(relevance))[0, 1])


OF_GRADES: dict[str, Callable[[Ints, Floats], float]] = {
    "ndcg10": ndcg10,
    "pair_accuracy": pair_accuracy,
    "query_spearman": spearman,
}
"""Metrics of a query whose titles differ in grade."""

OF_RELEVANT: dict[str, Callable[[NDArray[np.bool_], Floats], float]] = {
    "mrr10": mrr10,
    "map": average_precision,
    "recall10": recall10,
}
"""Metrics of a query that has a relevant title, and one that is not."""

BY_QUERY = ("ndcg10", "mrr10", "map", "recall10", "pair_accuracy", "query_spearman")
"""The metrics of single queries, whose mean over queries counts, in the order of reports."""
