"""Simulated users, who click on rankings of graded titles.

There are two models (Chuklin, Markov & de Rijke 2015, "Click Models for Web Search", chapter 3). `position`:
a user looks at rank r with probability 1/r (Joachims, Swaminathan & Schnabel 2017, η = 1) and clicks a title
that attracts. `cascade`: a user goes down from the top, clicks titles that attract and stops after a click
that satisfies (dependent click model, Guo, Liu & Wang 2009). The probabilities by grade are the
"navigational" ones of Hofmann, Whiteson & de Rijke 2013, "Fidelity, Soundness, and Efficiency of Interleaved
Comparison Methods".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.experiments.analysis.moments import Floats

ClickModel = Literal["position", "cascade"]
ClickMeasure = Literal["clicked", "clicks", "reciprocal_rank"]

DEPTH = 10
"""Titles that a user may see."""

EMPTY = -1
"""The grade of a rank without a title."""

_ATTRACTS = np.array([0.05, 0.3, 0.5, 0.7, 0.95])
_SATISFIES = np.array([0.2, 0.3, 0.5, 0.7, 0.9])


@dataclass(frozen=True, slots=True)
class Rankings:
    """Probabilities at each rank of each query's titles, (queries, DEPTH) each.

    click: a title that is looked at is clicked. go_on: the user looks at the next rank after a click. seen:
    the user looks at the rank, whatever happened above it.
    """

    click: Floats
    go_on: Floats
    seen: Floats

    @classmethod
    def of(cls, grades: NDArray[np.integer], *, levels: int, model: ClickModel) -> Rankings:
        """Return the probabilities of rankings.

        grades: (queries, DEPTH), 0 to levels − 1, or EMPTY. Other scales than 0 to 4 are stretched to it.
        """
        grade = np.where(grades == EMPTY, 0.0, grades * 4 / (levels - 1))
        click = np.where(grades == EMPTY, 0.0, np.interp(grade, range(5), _ATTRACTS))
        if model == "position":
            return cls(click, np.ones_like(click), np.broadcast_to(1 / np.arange(1, DEPTH + 1), click.shape))
        return cls(click, 1 - np.interp(grade, range(5), _SATISFIES), np.ones_like(click))

    def distribution(self, measure: ClickMeasure) -> tuple[Floats, Floats]:
        """Return a measure's values, (values,), and their probabilities on each query, (queries, values)."""
        clicks = self.click * self.seen
        if measure == "clicks":
            return np.arange(DEPTH + 1.0), self._counts(clicks)
        first = clicks * np.cumprod(
            np.concatenate([np.ones((len(clicks), 1)), 1 - clicks[:, :-1]], 1), axis=1
        )
        none = 1 - first.sum(1, keepdims=True)
        if measure == "clicked":
            return np.array([0.0, 1.0]), np.concatenate([none, 1 - none], axis=1)
        return np.array([0.0, *(1 / np.arange(1, DEPTH + 1))]), np.concatenate([none, first], axis=1)

    def _counts(self, clicks: Floats) -> Floats:
        """Return the probability of each number of clicks, (queries, DEPTH + 1)."""
        looking = np.zeros((len(clicks), DEPTH + 1))
        looking[:, 0] = 1.0
        stopped = np.zeros_like(looking)
        for rank in range(DEPTH):
            clicked = looking[:, :-1] * clicks[:, rank, None]
            stays = self.go_on[:, rank, None]
            looking = looking * (1 - clicks[:, rank, None])
            looking[:, 1:] += clicked * stays
            stopped[:, 1:] += clicked * (1 - stays)
        return looking + stopped


class Visits:
    """Draws values of a measure for users.

    probabilities: (rows, values), of each value on each row. A row is a query under a ranking.
    """

    def __init__(self, values: Floats, probabilities: Floats) -> None:
        self._values = values
        edges = np.cumsum(probabilities, axis=1)
        edges[:, -1] = 1.0
        self._edges = (edges + np.arange(len(edges))[:, None]).ravel()

    def draw(self, row: NDArray[np.integer], rng: np.random.Generator) -> Floats:
        """Return the value of one user on each of these rows, in the shape of `row`."""
        width = len(self._values)
        index = np.searchsorted(self._edges, row + rng.random(row.shape), side="right") - row * width
        return np.asarray(self._values[np.minimum(index, width - 1)])


def rank(
    query_of: NDArray[np.integer], grades: NDArray[np.integer], scores: NDArray[np.floating]
) -> NDArray[np.int64]:
    """Return the grades of each query's titles by falling score, (queries, DEPTH), filled up with EMPTY.

    query_of: (pairs,), numbers from 0. The order of the data breaks ties, as it does in a server.
    """
    order = np.lexsort((np.arange(len(scores)), -np.asarray(scores, np.float64), query_of))
    sorted_queries = query_of[order]
    starts = np.searchsorted(sorted_queries, sorted_queries)
    position = np.arange(len(order)) - starts
    ranking = np.full((int(query_of.max()) + 1, DEPTH), EMPTY, np.int64)
    top = position < DEPTH
    ranking[sorted_queries[top], position[top]] = grades[order][top]
    return ranking
