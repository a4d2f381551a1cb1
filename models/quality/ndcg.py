"""NDCG, in numpy alone: a replica needs it, and importing scipy takes most of a second.

Järvelin and Kekäläinen 2002, with a gain of 2^grade − 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CUTOFF = 10
"""NDCG looks at the first so many titles of a query."""


def ndcg10(truth: Ints, relevance: Floats) -> float:
    """Return the NDCG@10 of a query's titles ranked by relevance; those of equal relevance share their gain.

    truth: (n,) grades from 0, not all of them 0. relevance: (n,), higher comes first.
    """
    gains = gain(truth)
    return float(dcg(_tied(gains, relevance)) / dcg(np.sort(gains)[::-1]))


def gain(grades: Ints) -> Floats:
    """Return 2^grade − 1 of each grade, (n,)."""
    return np.exp2(grades.astype(np.float64)) - 1


def dcg(gains: Floats) -> float:
    """Return the sum of gains in rank order, (n,), each divided by log2(rank + 1), up to the cutoff."""
    top = gains[:CUTOFF]
    return float((top / np.log2(np.arange(2, len(top) + 2))).sum())


def _tied(gains: Floats, scores: Floats) -> Floats:
    """Return gains in the order of the scores; equal scores share their mean (McSherry, Najork 2008)."""
    order = np.argsort(-scores, kind="stable")
    _, group, sizes = np.unique(-scores[order], return_inverse=True, return_counts=True)
    return np.asarray((np.bincount(group, gains[order]) / sizes)[group])
