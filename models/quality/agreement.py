"""Compares a faster form of a model with the original: the scores of both on the same pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from models.classifier import Scores
from models.quality.bootstrap import Interval
from models.quality.evaluation import Evaluation, differences
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
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    change: dict[str, Interval] = field(default_factory=dict)


def agreement(first: Scores, second: Scores, labelled: Sequence[LabelledPair] | None = None) -> Agreement:
    """Compare two models' scores of the same pairs. labelled: the pairs, if their grades are known."""
    distance = np.abs(first.probabilities - second.probabilities)
    found = Agreement(
        pairs=len(distance),
        same_grade=float((first.grade == second.grade).mean()),
        largest_probability_difference=float(distance.max()),
        mean_probability_difference=float(distance.mean()),
    )
    if labelled is None:
        return found
    queries, grades = [pair.query for pair in labelled], [pair.grade for pair in labelled]
    before, after = (
        Evaluation(queries, grades, scores.probabilities, ranking=scores.raw_score)
        for scores in (first, second)
    )
    change = differences(before, after)
    return replace(found, before=before.metrics(), after=after.metrics(), change=change)
