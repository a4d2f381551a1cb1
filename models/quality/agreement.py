"""Compares a faster form of a model with the original: the scores of both on the same pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.classifier import Scores
from models.quality.evaluation import Evaluation, Interval, differences
from models.quality.labelled import LabelledPair


@dataclass(frozen=True, slots=True)
class Agreement:
    """The distance between the scores of two models.

    same_grade: the share of pairs with the same grade in both. largest and mean: of the distance between the
    two probabilities of a grade. before, after: metrics on labelled pairs by name, empty without labels.
    change: the second's metrics minus the first's, with paired intervals.
    """

    pairs: int
    same_grade: float
    largest_probability_difference: float
    mean_probability_difference: float
    before: dict[str, float]
    after: dict[str, float]
    change: dict[str, Interval]


def agreement(first: Scores, second: Scores, labelled: Sequence[LabelledPair] | None = None) -> Agreement:
    """Compare two models' scores of the same pairs. labelled: the pairs, if their grades are known."""
    distance = np.abs(first.probabilities - second.probabilities)
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    change: dict[str, Interval] = {}
    if labelled is not None:
        one, other = (
            Evaluation(
                [pair.query for pair in labelled],
                [pair.grade for pair in labelled],
                scores.probabilities,
                ranking=scores.raw_score,
            )
            for scores in (first, second)
        )
        before, after, change = one.metrics(), other.metrics(), differences(one, other)
    return Agreement(
        pairs=len(distance),
        same_grade=float((first.grade == second.grade).mean()),
        largest_probability_difference=float(distance.max()),
        mean_probability_difference=float(distance.mean()),
        before=before,
        after=after,
        change=change,
    )
