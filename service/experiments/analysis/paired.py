"""Compares the scores and rankings of one request under two arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CUTOFF = 10


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The fields of a ShadowResult that come from the scores."""

    mean_delta: float
    abs_deltas: tuple[float, ...]
    rank_correlation: float | None
    top10_overlap: float | None
    ndcg_control: float | None
    ndcg_arm: float | None


def paired(
    control: NDArray[np.floating],
    arm: NDArray[np.floating],
    grades: Sequence[int] | None = None,
    raw_scores: Sequence[NDArray[np.floating]] | None = None,
) -> PairedDifference:
    """Return the differences between an arm's scores and control's on the same titles.

    control, arm: (n,), n ≥ 1, in the request's order. grades: (n,) judgments from 0, if they are known.
    raw_scores: (n,) of control and of the arm, which rank the titles; default: the scores.
    The rank correlation is Spearman's with mean ranks for ties. The overlap is that of the ten best titles,
    if there are more than ten. NDCG@10 has gain 2^grade − 1 and is None if all grades are equal.
    """
    before, after = np.asarray(control, np.float64), np.asarray(arm, np.float64)
    deltas = after - before
    if raw_scores is not None:
        before, after = (np.asarray(values, np.float64) for values in raw_scores)
    ndcg_control, ndcg_arm = (None, None) if grades is None else (_ndcg(before, grades), _ndcg(after, grades))
    return PairedDifference(
        mean_delta=float(deltas.mean()),
        abs_deltas=tuple(np.abs(deltas).tolist()),
        rank_correlation=_spearman(before, after),
        top10_overlap=_overlap(before, after),
        ndcg_control=ndcg_control,
        ndcg_arm=ndcg_arm,
    )


def _spearman(before: Floats, after: Floats) -> float | None:
    left, right = (ranks - ranks.mean() for ranks in (_ranks(before), _ranks(after)))
    scale = float(np.sqrt((left @ left) * (right @ right)))
    return None if scale == 0 else float(left @ right) / scale


def _ranks(values: Floats) -> Floats:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(sizes) - (sizes - 1) / 2)[group])


def _best(scores: Floats) -> NDArray[np.intp]:
    """Return the indices of the ten best, in order. The request's order breaks ties."""
    return np.argsort(-scores, kind="stable")[:CUTOFF]


def _overlap(before: Floats, after: Floats) -> float | None:
    if len(before) <= CUTOFF:
        return None
    return len(set(_best(before).tolist()) & set(_best(after).tolist())) / CUTOFF


def _ndcg(scores: Floats, grades: Sequence[int]) -> float | None:
    gains = np.exp2(np.asarray(grades, np.float64)) - 1
    if gains.min() == gains.max():
        return None
    discounts = 1 / np.log2(np.arange(2, min(len(gains), CUTOFF) + 2))
    ideal = np.sort(gains)[::-1][:CUTOFF] @ discounts
    return float(gains[_best(scores)] @ discounts / ideal)
