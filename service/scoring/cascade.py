"""The rules of a cascade: who goes on to the next stage, and which scores come out.

Each query's titles go their own way. A stage scores all titles that reach it and hands the best `keep` of
them on; of equal scores, the first in the request. A stage that would keep all of its titles is not run.

A title is left with the score of the last stage that it reached. To make those scores comparable, each is
lowered as far as needed, and no further, to stay below the scores of the titles before it: first those that
the last stage scored, best first, then those that the stage before it left behind, and so on
(`comparable_scores`). So sorting by score gives the cascade's order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Keep = int | float
Scores = NDArray[np.float32]

_SIGN = 2**31


class Due(NamedTuple):
    """Pairs that a stage is to score next, in the order of the request."""

    stage: int
    pairs: list[int]


class Later(NamedTuple):
    """The number of titles that a stage will score, of these pairs; which ones is not known yet."""

    stage: int
    pairs: list[int]
    titles: int


class Course:
    """The way of a request's pairs through a cascade.

    While `due` holds something, score it and hand the scores to `advance`. A course that is left early is
    valid too: each pair then has the score of the last stage that it went through.

    queries: the query of each pair. keeps: what each stage but the last keeps.
    due: what to score next. stages: (pairs,) the last stage that scored each pair, -1 before.
    """

    def __init__(self, queries: Sequence[str], keeps: Sequence[Keep]) -> None:
        self._keeps = keeps
        self._groups: dict[str, list[int]] = {}
        for pair, query in enumerate(queries):
            self._groups.setdefault(query, []).append(pair)
        self._scores: Scores = np.zeros(len(queries), np.float32)
        self.stages = np.full(len(queries), -1)
        # Of each query, the stage that is next, and the pairs that reached it.
        self._reached = [(next_stage(len(pairs), keeps, 0), pairs) for pairs in self._groups.values()]
        self.due = self._next_due()

    def advance(self, scores: Sequence[Scores]) -> None:
        """Take the scores of everything that was due, and choose what is due after it.

        scores: one array for each entry of `due`, with the scores of its pairs.
        """
        for due, values in zip(self.due, scores, strict=True):
            self._scores[due.pairs] = values
            self.stages[due.pairs] = due.stage
        reached = []
        for stage, pairs in self._reached:
            if stage == len(self._keeps):
                continue
            best = np.argsort(-self._scores[pairs], kind="stable")[
                : count_kept(self._keeps[stage], len(pairs))
            ]
            kept = [pairs[place] for place in sorted(best)]
            reached.append((next_stage(len(kept), self._keeps, stage + 1), kept))
        self._reached = reached
        self.due = self._next_due()

    def scores(self, floor: float | None) -> Scores:
        """Return comparable scores, (pairs,) float32; those of different queries are not compared.

        floor: the lowest score that the model can give; None: there is none.
        """
        scores = self._scores.copy()
        for pairs in self._groups.values():
            scores[pairs] = comparable_scores(self._scores[pairs], self.stages[pairs], floor)
        return scores

    def _next_due(self) -> list[Due]:
        due: dict[int, list[int]] = {}
        for stage, pairs in self._reached:
            due.setdefault(stage, []).extend(pairs)
        return [Due(stage, sorted(due[stage])) for stage in sorted(due)]

    def later(self) -> list[Later]:
        """Return what comes after what is due, as far as it is known."""
        coming = []
        for stage, pairs in self._reached:
            count = len(pairs)
            while stage < len(self._keeps):
                count = count_kept(self._keeps[stage], count)
                stage = next_stage(count, self._keeps, stage + 1)
                coming.append(Later(stage, pairs, count))
        return coming


def floor_of(score_activation: str) -> float | None:
    """Return the lowest score of a model with this activation; None if there is none."""
    return None if score_activation == "identity" else 0.0


def logit_of(score: np.float32, score_activation: str) -> Scores:
    """Return the logit, (1,) float32, that gives a one-label model's score with this activation."""
    if score_activation == "identity":
        return np.array([score], np.float32)
    share = max(float(score), float(np.finfo(np.float32).tiny))
    return np.array([math.log(share) - math.log1p(-share)], np.float32)


def count_kept(keep: Keep, titles: int) -> int:
    """Return how many of a stage's titles go on: at most `keep`, or that share of them, rounded up."""
    if isinstance(keep, int):
        return min(keep, titles)
    return min(titles, math.ceil(round(keep * titles, 6)))  # 0.07 of 100 is 7.000000000000001


def next_stage(titles: int, keeps: Sequence[Keep], stage: int) -> int:
    """Return the first stage from `stage` on that is run on so many titles: none that would keep them all."""
    while stage < len(keeps) and count_kept(keeps[stage], titles) == titles:
        stage += 1
    return stage


def comparable_scores(
    scores: NDArray[np.float32], stages: NDArray[np.int64], floor: float | None
) -> NDArray[np.float32]:
    """Return scores whose order is that of the cascade: a later stage's titles first, then by score.

    Each score stays as it is if that gives the order, else it becomes the next lower float32 below the score
    before it. So a score changes by no more than it must, equal scores of one stage stay equal, and the last
    stage's never change.

    scores, stages: (titles,) of one query. floor: no score falls below it, where titles may become equal.
    """
    order = np.lexsort((-scores, -stages))
    steps = _as_steps(scores[order])
    # How many different scores are before each title: with these added, "strictly below the one before" is
    # "not above the one before", which a running minimum makes true.
    new = (np.diff(steps) != 0) | (np.diff(stages[order]) != 0)
    before = np.concatenate(([0], np.cumsum(new)))
    lowered = np.minimum.accumulate(steps + before) - before
    result = np.empty_like(scores)
    result[order] = _as_floats(lowered)
    return result if floor is None else np.maximum(result, np.float32(floor))


def _as_steps(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each float32's number in the order of all of them; neighbours differ by 1, and 0.0 is 0."""
    bits = np.ascontiguousarray(values).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits + _SIGN), bits)


def _as_floats(steps: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the float32 of each number; the inverse of `_as_steps`."""
    bits = np.where(steps < 0, -steps - _SIGN, steps)
    return bits.astype(np.int32).view(np.float32)
