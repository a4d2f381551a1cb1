"""Chooses what to remove for a given time: the least loss of quality whose layers' times fit.

Kwon et al. 2022, §4 (https://arxiv.org/abs/2204.09656). Removing a set of a layer's heads (or units) costs
½·Σ F[i, j] over i, j in the set, F being the Fisher information of their gates. Within each layer the parts
are ordered by greedy elimination under the layer's own block of F, so that of two parts that do the same work
only one is cheap. How many each layer keeps is a knapsack over the layers' halves, solved by dynamic
programming on measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TICKS = 4_000
"""The number of steps in which the time is counted."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Elimination:
    """The parts of one half of one layer in the order in which they go.

    order: (k,), the first to go first. costs: (k + 1,), the loss after 0, 1, … k went; it never falls.
    """

    order: NDArray[np.int64]
    costs: Floats


@dataclass(frozen=True, slots=True)
class Option:
    """A way to keep some of a half's parts: how many, the seconds that it takes, and the loss."""

    kept: int
    seconds: float
    cost: float


def eliminate(gradients: NDArray[np.float32], *, shrink: bool = True) -> Elimination:
    """Order parts by greedy elimination. gradients: (n, k) of the loss with respect to their gates.

    With few pairs, F has fewer independent rows than parts and would call sets free of cost whose gradients
    cancel by chance. So, with `shrink`, its off-diagonal part counts for n / (n + k) only.
    """
    pairs, parts = gradients.shape
    g = gradients.astype(np.float64)
    information = g.T @ g / max(pairs, 1)
    diagonal = information.diagonal().copy()
    if shrink:
        information *= pairs / (pairs + parts)
    np.fill_diagonal(information, diagonal)
    adds = diagonal / 2
    order, costs, cost = np.empty(parts, np.int64), np.zeros(parts + 1), 0.0
    for step in range(parts):
        part = int(adds.argmin())
        order[step] = part
        cost += adds[part]
        costs[step + 1] = cost
        adds += information[part]
        adds[part] = np.inf
    return Elimination(order, np.maximum.accumulate(np.maximum(costs, 0)))


def in_order(importance: Floats) -> Elimination:
    """Order parts by an importance of their own, (k,); removing a set costs the sum."""
    order = np.argsort(importance, kind="stable")
    return Elimination(order, np.concatenate([[0.0], np.cumsum(importance[order])]))


def cheapest(groups: Sequence[Sequence[Option]], seconds: float) -> list[Option] | None:
    """Choose one option of each group so that their times fit into `seconds` and their loss is least.

    Of equal losses the one that takes less time is chosen. Returns None if nothing fits. Times are rounded up
    to TICKS-ths of `seconds`, so the choice always fits.
    """
    if seconds <= 0:
        return None
    least = np.zeros(TICKS + 1)  # least[t]: of the groups so far, with at most t ticks
    chosen = []
    for options in groups:
        best, which = np.full(TICKS + 1, np.inf), np.zeros(TICKS + 1, np.int64)
        for index, option in sorted(enumerate(options), key=lambda item: item[1].seconds):
            ticks = int(np.ceil(option.seconds / seconds * TICKS - 1e-9))
            if ticks > TICKS:
                continue
            costs = least[: TICKS + 1 - ticks] + option.cost
            better = costs < best[ticks:]
            best[ticks:][better] = costs[better]
            which[ticks:][better] = index
        least = best
        chosen.append(which)
    if not np.isfinite(least[-1]):
        return None
    ticks, result = TICKS, []
    for options, which in zip(reversed(groups), reversed(chosen), strict=True):
        option = options[int(which[ticks])]
        result.append(option)
        ticks -= int(np.ceil(option.seconds / seconds * TICKS - 1e-9))
    return result[::-1]
