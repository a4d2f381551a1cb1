"""Do two trainings from different seeds end with the same heads, and at the same places?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from models.study.heads import Heads
from models.study.similarity.distances import Distances
from models.study.statistics import mean_intervals, permutation_p

PERMUTATIONS = 999
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Seeds:
    """Distances between two models' heads, on queries that took no part in matching them.

    matched: the mean distance of each head to its match in the other model (Hungarian matching), with its
    interval; chance: the same under random matchings; p: the share of random matchings at least as close.
    same_place: the mean distance of heads with the same layer and number; same_place_p: tests it against
    heads of the same layer in random order. nearest_within: the mean distance of each head to the nearest
    other head of its own model. extra: matched − nearest_within, with its interval. same_layer: the share of
    heads whose match is in the layer of the same number. pairs: how many pairs were compared; left_out: how
    many were not, because the two models cut them into different words.
    """

    matched: tuple[float, float, float]
    chance: float
    p: float
    same_place: float | None
    same_place_p: float | None
    nearest_within: float
    extra: tuple[float, float, float]
    same_layer: float
    pairs: int
    left_out: int


def compare(
    within: Distances,
    between: Distances,
    mine: Heads,
    theirs: Heads,
    *,
    seed: int,
    resamples: int,
) -> Seeds | None:
    """Return the comparison, or None if fewer than four queries have pairs that both models cut into the same
    words.

    mine, theirs: the heads of the rows and columns of `between`.
    """
    rng = np.random.default_rng([seed, 8])
    queries = np.intersect1d(within.query_of, between.query_of)
    if len(queries) < 4:
        return None
    first = rng.permutation(queries)[: len(queries) // 2]
    halves = first, np.setdiff1d(queries, first)  # `within` may have more queries than can be compared
    learn, test = (_by_query(between, half) for half in halves)
    own_learn, own_test = (_by_query(within, half) for half in halves)
    rows, columns = linear_sum_assignment(learn.mean(0))
    own = own_learn.mean(0)
    np.fill_diagonal(own, np.inf)
    nearest = own.argmin(1)[rows]
    matched = test[:, rows, columns].mean(1)  # (queries,)
    closest = own_test[:, rows, nearest].mean(1)
    pooled = test.mean(0)
    null = np.array([pooled[rows, rng.permutation(columns)].mean() for _ in range(PERMUTATIONS)])
    same_place = same_place_p = None
    if mine == theirs:
        same_place = float(np.diag(pooled).mean())
        layers = np.array([layer for layer, _ in mine])
        shuffled = [
            pooled[np.arange(len(mine)), _within_layers(layers, rng)].mean() for _ in range(PERMUTATIONS)
        ]
        same_place_p = permutation_p(-same_place, -np.array(shuffled))
    return Seeds(
        _interval(matched, resamples, seed),
        float(null.mean()),
        permutation_p(-float(matched.mean()), -null),
        same_place,
        same_place_p,
        float(closest.mean()),
        _interval(matched - closest, resamples, seed),
        float(np.mean([mine[a][0] == theirs[b][0] for a, b in zip(rows, columns, strict=True)])),
        len(between.values),
        between.left_out,
    )


def _by_query(distances: Distances, queries: NDArray[np.int64]) -> Floats:
    """Return the mean distances of each of these queries, in ascending order: (queries, heads, other
    heads)."""
    return np.stack(
        [distances.values[distances.query_of == q].mean(0, dtype=np.float64) for q in np.sort(queries)]
    )


def _within_layers(layers: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a permutation that keeps every head in its layer."""
    places = np.arange(len(layers))
    for layer in np.unique(layers):
        inside = np.flatnonzero(layers == layer)
        places[inside] = rng.permutation(inside)
    return places


def _interval(values: Floats, resamples: int, seed: int) -> tuple[float, float, float]:
    low, high = mean_intervals(values[:, None], resamples, seed)
    return float(values.mean()), float(low[0]), float(high[0])
