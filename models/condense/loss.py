"""The loss of a shorter query: how far its relevance judgments are from those of the whole query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.classifier import Scores, sigmoid
from models.errors import ModelError
from models.quality.metrics import ndcg10

Floats = NDArray[np.float64]
Measure = Literal["jensen_shannon", "ndcg10"]

MAX_LOSS: dict[Measure, float] = {"jensen_shannon": 0.1, "ndcg10": 0.01}
"""The bound on the loss if a request gives neither a bound nor a number of words."""

Loss = Callable[[Floats], tuple[float, float]]
"""Takes a query's distributions (titles, grades); returns its loss and a second number that tells queries
of one loss apart. Less of both is better."""


def loss_against(whole: Floats, grades: Sequence[int] | None) -> Loss:
    """Return the loss of queries against the whole query. whole: (titles, grades), judged under it.

    Without grades it is the mean Jensen–Shannon distance of the titles' distributions: 0 if every title is
    judged as under the whole query, 1 if no title keeps any of its probable grades. With the grades of the
    titles, from 0, it is the NDCG@10 that the whole query has and the shorter one has not: from −1, if that
    ranks better, to 1.
    """

    def distance(judged: Floats) -> float:
        return float(jensen_shannon(whole, judged).mean())

    if grades is None:
        return lambda judged: (distance(judged), 0.0)
    truth = np.asarray(grades, np.int64)
    best = ndcg10(truth, relevance(whole))
    return lambda judged: (best - ndcg10(truth, relevance(judged)), distance(judged))


def check_grades(grades: Sequence[int], titles: int) -> None:
    """Raise ModelError if grades do not fit their titles, or no order of these is better than another."""
    if len(grades) != titles:
        raise ModelError(f"grades: {len(grades)} grades for {titles} titles")
    if len(set(grades)) < 2:
        raise ModelError("grades: every title has the same grade, so NDCG@10 is not defined; leave them out")


def distributions(scores: Scores) -> Floats:
    """Return the distribution over the grades of n pairs, (n, grades).

    A one-label model has two grades, with the probabilities 1 − p and p for its sigmoid p.
    """
    values = scores.probabilities.astype(np.float64)
    if not np.isfinite(values).all():
        raise ModelError("the model gave no finite score")
    if values.shape[1] == 1:
        return np.stack([sigmoid(-scores.raw_score), sigmoid(scores.raw_score)], axis=1)
    return values


def relevance(judged: Floats) -> Floats:
    """Return the log-odds of each title's expected grade, (titles,), which rank them.

    The mean itself would round off how sure a model is that a title is of the highest grade.
    """
    grades = np.arange(judged.shape[1], dtype=np.float64)
    smallest = np.finfo(np.float64).tiny
    relevant, irrelevant = (np.maximum(judged @ weights, smallest) for weights in (grades, grades[::-1]))
    return np.asarray(np.log(relevant) - np.log(irrelevant))


def jensen_shannon(left: NDArray[np.floating], right: NDArray[np.floating]) -> Floats:
    """Return the Jensen–Shannon distance (base 2, from 0 to 1) of distributions in the last axis.

    In numpy alone: a replica needs it, and importing scipy takes most of a second.
    """
    middle = (left + right) / 2
    safe = np.where(middle > 0, middle, 1)
    ratios = [np.where(part > 0, part / safe, 1) for part in (left, right)]
    divergence = (left * np.log2(ratios[0]) + right * np.log2(ratios[1])).sum(-1) / 2
    return np.asarray(np.sqrt(np.clip(divergence, 0, 1)))
