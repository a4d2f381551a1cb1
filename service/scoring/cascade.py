"""The rules of a cascade: who goes on to the next stage, and which scores come out.

Each query's titles go their own way. A stage scores all titles that reach it and hands the best `keep` of
them on, by their raw scores (`headroom.models.classifier.Scores`), which do not saturate; of equal ones, the
first in the request. A stage that would keep all of its titles, or so many that it saves next to nothing, is
not run.

A title is left with the score of the last stage that it reached. To make those scores comparable, each is
lowered as far as needed, and no further, to stay below the scores of the titles before it: first those that
the last stage scored, best first, then those that the stage before it left behind, and so on
(`comparable_scores`). So sorting by score gives the cascade's order.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headroom.models.arrays import LOWEST

Keep = int | float
RawScores = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]


WORTH = 0.9
"""A cheaper stage is run if it and the next one take at most this share of the next one's time alone. With 12
titles, the shipped cascade took 1.02 of the time and lost 0.008 of NDCG@10 (237 queries); with 15, 0.85 and
0.028."""


class Due(NamedTuple):
    """Pairs that a stage is to score next, in the order of the request."""

    stage: int
    pairs: Sequence[int]


class CascadeProgress:
    """The way of a request's pairs through the stages of a cascade.

    While `due` holds something, score it and hand the raw scores to `advance`. Stopping early is valid too:
    each pair then has the score of the last stage that it went through.

    queries: the query of each pair. keeps: what each stage but the last keeps. costs: of each stage, what a
    title costs in it relative to the others; empty: all stages are run that keep fewer titles than they get.
    due: what to score next. stages: (pairs,) the last stage that scored each pair, -1 before.
    """

    def __init__(self, queries: Sequence[str], keeps: Sequence[Keep], costs: Sequence[float] = ()) -> None:
        self._keeps = keeps
        self._costs = costs
        self._groups: dict[str, list[int]] = {}
        for pair, query in enumerate(queries):
            self._groups.setdefault(query, []).append(pair)
        self._raw_scores: RawScores = np.zeros(len(queries), np.float64)
        self.stages = np.full(len(queries), -1)
        # Of each query, the stage that is next, and the pairs that reached it.
        self._reached = [(next_stage(len(pairs), keeps, 0, costs), pairs) for pairs in self._groups.values()]
        self.due = self._next_due()

    def advance(self, raw_scores: Sequence[Sequence[float] | RawScores]) -> None:
        """Take the raw scores of everything that was due, and choose what is due after it.

        raw_scores: one array for each entry of `due`, with those of its pairs.
        """
        for due, values in zip(self.due, raw_scores, strict=True):
            self._raw_scores[due.pairs] = values
            self.stages[due.pairs] = due.stage
        reached = []
        for stage, pairs in self._reached:
            if stage == len(self._keeps):
                continue
            best = np.argsort(-self._raw_scores[pairs], kind="stable")[
                : count_kept(self._keeps[stage], len(pairs))
            ]
            kept = [pairs[index] for index in sorted(best)]
            reached.append((next_stage(len(kept), self._keeps, stage + 1, self._costs), kept))
        self._reached = reached
        self.due = self._next_due()

    def scores(self, scores: Floats, floor: float | None) -> Floats:
        """Return comparable scores, (pairs,); those of different queries are not compared.

        scores: of each pair, from the last stage that scored it. floor: the lowest that the model can give.
        """
        comparable = np.empty_like(scores)
        for pairs in self._groups.values():
            comparable[pairs] = comparable_scores(
                scores[pairs], self.stages[pairs], floor, self._raw_scores[pairs]
            )
        return comparable

    def raw_scores(self) -> RawScores:
        """Return comparable raw scores, (pairs,)."""
        return self.scores(self._raw_scores, None).astype(np.float64, copy=False)

    def _next_due(self) -> list[Due]:
        due: dict[int, list[int]] = {}
        for stage, pairs in self._reached:
            due.setdefault(stage, []).extend(pairs)
        return [Due(stage, sorted(due[stage])) for stage in sorted(due)]


def lowest_score(score_activation: str) -> float:
    """Return the lowest score of a model with this activation."""
    return LOWEST if score_activation == "identity" else 0.0


def count_kept(keep: Keep, titles: int) -> int:
    """Return how many of a stage's titles go on: at most `keep`, or that share of them, rounded up."""
    if isinstance(keep, int):
        return min(keep, titles)
    return min(titles, math.ceil(round(keep * titles, 6)))  # 0.07 of 100 is 7.000000000000001


def next_stage(titles: int, keeps: Sequence[Keep], stage: int, costs: Sequence[float] = ()) -> int:
    """Return the first stage from `stage` on that is worth running with this number of titles."""
    while stage < len(keeps):
        kept = count_kept(keeps[stage], titles)
        if kept < titles and (not costs or _is_worth(costs[stage], costs[stage + 1], kept / titles)):
            break
        stage += 1
    return stage


def _is_worth(cost: float, cost_after: float, share_kept: float) -> bool:
    """Return whether a stage saves enough. A stage that is not cheaper than the next is not there to save."""
    return cost >= cost_after or cost / cost_after + share_kept <= WORTH


def comparable_scores(
    scores: Floats,
    stages: NDArray[np.int64],
    floor: float | None,
    raw_scores: Floats,
) -> Floats:
    """Return scores whose order is that of the cascade: a later stage's titles first, then by raw score.

    Each score stays as it is if that gives the order, else it becomes the next lower float below the score
    before it. So a score changes by no more than it must, equal scores of one stage stay equal, and the last
    stage's never change.

    scores, stages, raw_scores: (titles,) of one query; the scores rise with the raw scores.
    floor: no score falls below it, where titles may become equal; None: there is none.
    """
    order = np.lexsort((-raw_scores, -stages))
    sorted_scores = scores[order]
    sorted_stages = stages[order]
    is_tied = (np.diff(sorted_scores) == 0) & (np.diff(sorted_stages) == 0)  # with the title before it
    lowest = scores.dtype.type(-np.inf if floor is None else floor)
    lowered = sorted_scores.copy()
    for index, tied in enumerate(is_tied.tolist(), start=1):
        previous = lowered[index - 1]
        if tied:
            lowered[index] = previous
        elif lowered[index] >= previous:
            lowered[index] = np.nextafter(previous, lowest, dtype=scores.dtype)
    result = np.empty_like(scores)
    result[order] = np.maximum(lowered, lowest)
    return result
