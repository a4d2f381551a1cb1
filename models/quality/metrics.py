"""Computes metrics that are functions of sums over queries, and their derivatives.

A query's row of sums holds how often each true grade met each predicted grade (grades², truth first), the
query's NDCG@10, and 1 if it has one. One product with the derivative gives each query's influence on a
metric, and so its standard error (the delta method).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NAMES = ("accuracy", "macro_f1", "qwk", "ndcg10")


def values(sums: Floats, grades: int) -> Floats:
    """Return the metrics NAMES of added-up sums: (..., grades² + 2) → (..., 4).

    accuracy; macro_f1 over the grades that occur; qwk (quadratic weighted kappa, Cohen 1968: 1 is agreement,
    0 chance, and 0 if only one grade occurs); the mean NDCG@10, nan if no query has one.
    """
    return _compute(sums, grades, gradients=False)[0]


def values_and_gradients(sums: Floats, grades: int) -> tuple[Floats, Floats]:
    """Return the metrics, (..., 4), and their derivatives by the sums, (..., 4, grades² + 2)."""
    return _compute(sums, grades, gradients=True)


def _compute(sums: Floats, grades: int, *, gradients: bool) -> tuple[Floats, Floats]:
    confusion = sums[..., :-2].reshape(*sums.shape[:-1], grades, grades)  # [truth, predicted]
    parts = [_accuracy(confusion, gradients), _macro_f1(confusion, gradients), _kappa(confusion, gradients)]
    ranked = np.where(sums[..., -1] > 0, sums[..., -1], np.nan)  # infinite slopes would meet zeros later
    ndcg = sums[..., -2] / ranked
    metrics = np.stack([*(value for value, _ in parts), ndcg], -1)
    if not gradients:
        return metrics, np.empty(0)
    slopes = np.zeros((*metrics.shape, sums.shape[-1]))
    for place, (_, slope) in enumerate(parts):
        slopes[..., place, :-2] = slope.reshape(*sums.shape[:-1], grades * grades)
    slopes[..., 3, -2] = 1 / ranked
    slopes[..., 3, -1] = -ndcg / ranked
    return metrics, slopes


def _accuracy(confusion: Floats, gradients: bool) -> tuple[Floats, Floats]:
    total = np.einsum("...ij->...", confusion)  # sums over short axes are slow with .sum
    value = np.einsum("...ii->...", confusion) / total
    if not gradients:
        return value, value
    return value, (np.eye(confusion.shape[-1]) - value[..., None, None]) / total[..., None, None]


def _macro_f1(confusion: Floats, gradients: bool) -> tuple[Floats, Floats]:
    right = np.diagonal(confusion, axis1=-2, axis2=-1)
    truth = np.einsum("...ij->...i", confusion)
    occurs = truth > 0
    both = np.einsum("...ij->...j", confusion) + truth
    # 1/(row + column) of a grade that occurs, divided by how many occur.
    share = np.where(occurs, 1 / np.where(occurs, both, 1), 0) / occurs.sum(-1, keepdims=True)
    value = 2 * np.einsum("...i,...i->...", right, share)
    if not gradients:
        return value, value
    f1 = 2 * right / np.where(occurs, both, 1)
    loss = f1 * share
    return value, np.eye(confusion.shape[-1]) * 2 * share[..., None] - loss[..., :, None] - loss[..., None, :]


def _kappa(confusion: Floats, gradients: bool) -> tuple[Floats, Floats]:
    numbers = np.arange(confusion.shape[-1])
    distance = np.square(numbers[:, None] - numbers).astype(np.float64)
    truth, predicted = np.einsum("...ij->...i", confusion), np.einsum("...ij->...j", confusion)
    total = np.einsum("...i->...", truth)
    observed = np.einsum("...ij,ij->...", confusion, distance)
    from_truth, from_predicted = truth @ distance, predicted @ distance  # (..., predicted), (..., truth)
    chance = np.einsum("...i,...i->...", from_truth, predicted) / total
    some = chance > 0
    safe = np.where(some, chance, 1)
    value = np.where(some, 1 - observed / safe, 0)
    if not gradients:
        return value, value
    slope_of_chance = (
        from_predicted[..., :, None] + from_truth[..., None, :] - chance[..., None, None]
    ) / total[..., None, None]
    ratio = np.where(some, observed / safe**2, 0)
    return value, slope_of_chance * ratio[..., None, None] - distance * np.where(some, 1 / safe, 0)[
        ..., None, None
    ]
