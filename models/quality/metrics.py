"""NDCG of a query, and the metrics that are functions of sums over queries.

NDCG: Järvelin and Kekäläinen 2002, with a gain of 2^grade − 1.

A query's row of sums holds how often each true grade met each predicted grade (grades², truth first), the
query's NDCG@10, and 1 if it has one. A resample of the queries adds the rows up, each as often as it was
drawn.
"""

import numpy as np

from headroom.models.arrays import Floats, Ints

CUTOFF = 10
"""How many titles of a query, the first ones, NDCG looks at."""

NAMES = ("accuracy", "macro_f1", "qwk", "ndcg10")


def values(sums: Floats, grades: int) -> Floats:
    """Return the metrics NAMES of added-up sums: (..., grades² + 2) → (..., 4).

    accuracy; macro_f1 over the grades that occur; qwk (quadratic weighted kappa, Cohen 1968: 1 is
    agreement, 0 chance, and 0 if only one grade occurs); the mean NDCG@10, nan if no query has one.
    """
    confusion = sums[..., :-2].reshape(*sums.shape[:-1], grades, grades)  # [truth, predicted]
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

    ndcg10 = sums[..., -2] / np.where(sums[..., -1] > 0, sums[..., -1], np.nan)
    return np.stack([accuracy, macro_f1, qwk, ndcg10], -1)


def ndcg10(truth: Ints, relevance: Floats) -> float:
    """Return the NDCG@10 of a query's titles ranked by relevance; those of equal relevance share their gain.

    truth: (n,) grades from 0, not all of them 0. relevance: (n,), higher comes first.
    """
    gains = gain(truth)
    order = np.argsort(-relevance, kind="stable")
    _, group, sizes = np.unique(-relevance[order], return_inverse=True, return_counts=True)
    tied = (np.bincount(group, gains[order]) / sizes)[group]  # McSherry, Najork 2008
    return float(dcg(tied) / dcg(np.sort(gains)[::-1]))


def gain(grades: Ints) -> Floats:
    """Return 2^grade − 1 of each grade, (n,)."""
    return np.exp2(grades.astype(np.float64)) - 1


def dcg(gains: Floats) -> float:
    """Return the sum of gains in rank order, (n,), each divided by log2(rank + 1), up to the cutoff."""
    top = gains[:CUTOFF]
    return float((top / np.log2(np.arange(2, len(top) + 2))).sum())
