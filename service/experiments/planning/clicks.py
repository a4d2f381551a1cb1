"""Users who click: what a ranking of graded titles brings, for simulated experiments.

Two models (Chuklin, Markov & de Rijke 2015, "Click Models for Web Search", chapter 3). `position`: a user
looks at place r with probability 1/r (Joachims, Swaminathan & Schnabel 2017, η = 1) and clicks what attracts.
`cascade`: a user goes down from the top, clicks what attracts and stops after a click that satisfies
(dependent click model, Guo, Liu & Wang 2009). The probabilities by grade are those called "navigational" by
Hofmann, Whiteson & de Rijke 2013, "Fidelity, Soundness, and Efficiency of Interleaved Comparison Methods".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.experiments.analysis.moments import Floats

Model = Literal["position", "cascade"]
Measure = Literal["clicked", "clicks", "reciprocal_rank"]

DEPTH = 10
"""Titles that a user may see."""

EMPTY = -1
"""The grade of a place without a title."""

_ATTRACTS = np.array([0.05, 0.3, 0.5, 0.7, 0.95])
_SATISFIES = np.array([0.2, 0.3, 0.5, 0.7, 0.9])


@dataclass(frozen=True, slots=True)
class Rankings:
    """Click probabilities of the places of each query: (queries, DEPTH) each.

    click: of a title that is looked at; go_on: of looking at the next place after a click; seen: of looking
    at a place, whatever happened above it.
    """

    click: Floats
    go_on: Floats
    seen: Floats

    @classmethod
    def of(cls, grades: NDArray[np.integer], *, levels: int, model: Model) -> Rankings:
        """grades: (queries, DEPTH), 0 to levels − 1, or EMPTY; other scales than 0 to 4 are stretched."""
        place = np.where(grades == EMPTY, 0.0, grades * 4 / (levels - 1))
        click = np.where(grades == EMPTY, 0.0, np.interp(place, range(5), _ATTRACTS))
        if model == "position":
            return cls(click, np.ones_like(click), np.broadcast_to(1 / np.arange(1, DEPTH + 1), click.shape))
        return cls(click, 1 - np.interp(place, range(5), _SATISFIES), np.ones_like(click))

    def distribution(self, measure: Measure) -> tuple[Floats, Floats]:
        """What a user may do, (values,), and how likely that is on each query, (queries, values)."""
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
        """(queries, DEPTH + 1): how likely each number of clicks is, place by place."""
        looking = np.zeros((len(clicks), DEPTH + 1))
        looking[:, 0] = 1.0
        gone = np.zeros_like(looking)
        for place in range(DEPTH):
            clicked = looking[:, :-1] * clicks[:, place, None]
            stays = self.go_on[:, place, None]
            looking = looking * (1 - clicks[:, place, None])
            looking[:, 1:] += clicked * stays
            gone[:, 1:] += clicked * (1 - stays)
        return looking + gone


class Visits:
    """Draws users of a measure.

    probabilities: (rows, values), of each value on each row, a row being a query under some ranking.
    """

    def __init__(self, values: Floats, probabilities: Floats) -> None:
        self._values = values
        edges = np.cumsum(probabilities, axis=1)
        edges[:, -1] = 1.0
        self._edges = (edges + np.arange(len(edges))[:, None]).ravel()

    def draw(self, row: NDArray[np.integer], rng: np.random.Generator) -> Floats:
        """What one user on each of these rows does, in the shape of `row`."""
        width = len(self._values)
        place = np.searchsorted(self._edges, row + rng.random(row.shape), side="right") - row * width
        return np.asarray(self._values[np.minimum(place, width - 1)])


def rank(
    query_of: NDArray[np.integer], grades: NDArray[np.integer], scores: NDArray[np.floating]
) -> NDArray[np.int64]:
    """(queries, DEPTH) grades of each query's titles by falling score, filled up with EMPTY.

    query_of: (pairs,), numbers from 0; among equal scores the order of the data decides, as a server's would.
    """
    order = np.lexsort((np.arange(len(scores)), -np.asarray(scores, np.float64), query_of))
    sorted_queries = query_of[order]
    starts = np.searchsorted(sorted_queries, sorted_queries)
    place = np.arange(len(order)) - starts
    found = np.full((int(query_of.max()) + 1, DEPTH), EMPTY, np.int64)
    top = place < DEPTH
    found[sorted_queries[top], place[top]] = grades[order][top]
    return found
