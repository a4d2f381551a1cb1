"""Precision and recall of a cut at a score, and the score for a wanted precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headroom.models.arrays import Bools, Floats, Floats32, Ints
from headroom.models.errors import ModelError
from headroom.models.quality.bootstrap import Interval, draws, resample
from headroom.models.quality.calibration import PARTS, parts_of
from headroom.models.quality.evaluation import CLUSTERS, intervals_of
from headroom.models.quality.labelled import LabelledPair

MIN_KEPT = 20
"""A threshold for a wanted precision keeps at least this many pairs: that of a few means nothing."""

DECIMALS = 4
"""Digits after the point of a chosen threshold."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The result of a cut at a threshold, which keeps the pairs whose score is at least the threshold.

    precision: the share of kept pairs that are relevant; recall: the share of relevant pairs that are kept;
    kept: the share of all pairs that is kept.
    """

    threshold: float
    precision: Interval
    recall: Interval
    kept: Interval


def cut_at(
    threshold: float, scores: Floats32, relevant: Bools, pairs: Sequence[LabelledPair], resamples: int
) -> Cut:
    """Return what a cut keeps of the pairs. scores, relevant: (n,)."""
    return _measured(threshold, scores >= np.float32(threshold), relevant, pairs, resamples)


def cut_for(
    precision: float, scores: Floats32, relevant: Bools, pairs: Sequence[LabelledPair], resamples: int
) -> Cut:
    """Return the cut with the lowest threshold whose precision is at least the wanted one.

    Its figures are of queries that had no part in the choice: each fifth of the queries is cut at the
    threshold that the others choose. scores, relevant: (n,).
    Raises ModelError if no threshold that keeps MIN_KEPT pairs has that precision.
    """
    threshold = lowest_threshold(precision, scores, relevant)
    parts = parts_of(pairs)
    kept = np.zeros(len(scores), np.bool_)
    for part in range(PARTS):
        judged = parts == part
        if judged.any() and not judged.all():
            chosen = lowest_threshold(precision, scores[~judged], relevant[~judged])
            kept[judged] = scores[judged] >= np.float32(chosen)
    return _measured(threshold, kept, relevant, pairs, resamples)


def lowest_threshold(precision: float, scores: Floats32, relevant: Bools) -> float:
    """Return the lowest threshold with at least this precision, rounded down to DECIMALS digits if that has
    it too. Raises ModelError as `cut_for` does."""
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    counts = np.arange(1, len(scores) + 1)
    precisions = np.cumsum(relevant[order]) / counts
    is_end = np.append(falling[1:] < falling[:-1], True)  # equal scores are kept together
    allowed = np.flatnonzero(is_end & (counts >= MIN_KEPT))
    if not len(allowed):
        raise ModelError(f"{len(scores)} pairs are too few for a threshold; at least {MIN_KEPT} are needed")
    reached = allowed[precisions[allowed] >= precision]
    if not len(reached):
        best = allowed[precisions[allowed].argmax()]
        raise ModelError(
            f"no threshold that keeps {MIN_KEPT} pairs has precision {precision:g}; the highest is "
            f"{precisions[best]:.3f}, at {as_decimal(falling[best])}"
        )
    lowest = float(falling[reached[-1]])
    rounded = float(np.floor(lowest * 10**DECIMALS) / 10**DECIMALS)
    kept = scores >= np.float32(rounded)
    return rounded if relevant[kept].mean() >= precision else lowest


def as_decimal(threshold: float) -> str:
    """Return the shortest decimal that cuts scores as the threshold does: scores are float32."""
    return np.format_float_positional(np.float32(threshold), trim="-")


def _measured(
    threshold: float, kept: Bools, relevant: Bools, pairs: Sequence[LabelledPair], resamples: int
) -> Cut:
    """Return the figures of the pairs that are kept, with intervals by bootstrap over queries."""
    clusters = _clusters_of(pairs)
    size = int(clusters.max()) + 1
    of_all = np.bincount(clusters, minlength=size)
    of_kept, of_relevant, of_both = (
        np.bincount(clusters, rows, size) for rows in (kept, relevant, kept & relevant)
    )

    def statistics(counts: Floats) -> dict[str, Floats]:
        found = counts @ of_both
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                "precision": found / (counts @ of_kept),
                "recall": found / (counts @ of_relevant),
                "kept": (counts @ of_kept) / (counts @ of_all),
            }

    counts = resample(size, resamples, 0)
    return Cut(threshold, **intervals_of(draws(statistics, counts), counts))


def _clusters_of(pairs: Sequence[LabelledPair]) -> Ints:
    """Return the group of queries of each pair, (n,): one per query, if there are at most CLUSTERS."""
    numbers = {query: number for number, query in enumerate(dict.fromkeys(pair.query for pair in pairs))}
    return np.array([numbers[pair.query] % CLUSTERS for pair in pairs])
