"""The loss of a shorter query: how far its relevance judgments are from those of the whole query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from models.classifier import Scores, sigmoid
from models.errors import ModelError
from models.quality.ndcg import ndcg10

Floats = NDArray[np.float64]
Measure = Literal["jensen_shannon", "ndcg10"]

MAX_LOSS: dict[Measure, float] = {"jensen_shannon": 0.1, "ndcg10": 0.01}
"""The bound on the loss if a request gives neither a bound nor a number of words."""


class Loss(Protocol):
    """Measures queries against the whole query.

    measure: its name. `of`: the loss of a query and, to choose among queries of one loss, a second number;
    both less is better. judged: (titles, grades), the distribution over the grades of each title.
    """

    measure: Measure

    def of(self, judged: Floats) -> tuple[float, float]: ...


class Divergence:
    """The mean Jensen–Shannon distance (base 2) between the titles' grade distributions: 0 if every title is
    judged as under the whole query, 1 if no title keeps any of its probable grades."""

    measure: Measure = "jensen_shannon"

    def __init__(self, whole: Floats) -> None:
        """whole: (titles, grades), judged under the whole query."""
        self._whole = whole

    def of(self, judged: Floats) -> tuple[float, float]:
        """Return the loss, twice."""
        distance = float(jensen_shannon(self._whole, judged).mean())
        return distance, distance


class Ranking:
    """The NDCG@10 that the whole query has and the shorter one has not, against known grades: from −1, if the
    shorter query ranks better, to 1. Queries of one NDCG@10 are told apart by the divergence."""

    measure: Measure = "ndcg10"

    def __init__(self, whole: Floats, grades: Sequence[int]) -> None:
        """whole: as in Divergence. grades: of each title, from 0; not all the same."""
        self._divergence = Divergence(whole)
        self._truth = np.asarray(grades, np.int64)
        self._best = ndcg10(self._truth, relevance(whole))

    def of(self, judged: Floats) -> tuple[float, float]:
        """Return the loss, and the divergence."""
        return self._best - ndcg10(self._truth, relevance(judged)), self._divergence.of(judged)[0]


def loss_against(whole: Floats, grades: Sequence[int] | None) -> Loss:
    """Return the loss that fits a request with or without grades."""
    return Divergence(whole) if grades is None else Ranking(whole, grades)


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
    shares = (np.maximum(judged @ weights, np.finfo(np.float64).tiny) for weights in (grades, grades[::-1]))
    relevant, irrelevant = (np.log(share) for share in shares)
    ranked: Floats = relevant - irrelevant
    return ranked


def jensen_shannon(left: Floats, right: Floats) -> Floats:
    """Return the Jensen–Shannon distance (base 2, from 0 to 1) of distributions in the last axis."""
    middle = (left + right) / 2
    safe = np.where(middle > 0, middle, 1)
    ratios = [np.where(part > 0, part / safe, 1) for part in (left, right)]
    divergence = (left * np.log2(ratios[0]) + right * np.log2(ratios[1])).sum(-1) / 2
    distance: Floats = np.sqrt(np.clip(divergence, 0, 1))
    return distance
