"""Precision and recall of a cut at a score, and the score for a wanted precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headroom.models.arrays import Bools, Floats, Floats32
from headroom.models.errors import ModelError
from headroom.models.quality.bootstrap import Interval, draws, resample
from headroom.models.quality.calibration import judged_folds
from headroom.models.quality.evaluation import CLUSTERS, intervals_of
from headroom.models.quality.labelled import LabelledPair, numbers_of_queries
from headroom.models.quality.noninferiority import RESAMPLES

MIN_KEPT = 20
"""A threshold for a wanted precision keeps at least this many pairs: that of a few means nothing."""

DECIMALS = 4
"""Digits after the point of a chosen threshold."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The result of a cut at a threshold, which keeps the pairs whose score is at least the threshold.

    precision: the share of kept pairs that are relevant; recall: the share of relevant pairs that are kept;
    kept: the share of all pairs that is kept. fifths_missed: how many fifths of the queries were cut at a
    threshold that does not have the wanted precision on the others, because none has it.
    """

    threshold: float
    precision: Interval
    recall: Interval
    kept: Interval
    fifths_missed: int = 0


def cut_at(
    threshold: float,
    scores: Floats32,
    relevant: Bools,
    pairs: Sequence[LabelledPair],
    resamples: int = RESAMPLES,
) -> Cut:
    """Return what a cut keeps of the pairs. scores, relevant: (n,)."""
    return _measured(threshold, scores >= np.float32(threshold), relevant, pairs, resamples)


def cut_for(
    precision: float,
    scores: Floats32,
    relevant: Bools,
    pairs: Sequence[LabelledPair],
    resamples: int = RESAMPLES,
) -> Cut:
    """Return the cut with the lowest threshold whose precision is at least the wanted one.

    Its figures are of queries that had no part in the choice: each fifth of the queries is cut at the
    threshold that the others choose, or at their most precise one if none has the precision.
    scores, relevant: (n,).
    Raises ModelError if no threshold that keeps MIN_KEPT pairs has that precision.
    """
    if len(scores) < MIN_KEPT:
        raise ModelError(f"{len(scores)} pairs are too few for a threshold; at least {MIN_KEPT} are needed")
    threshold = lowest_threshold(precision, scores, relevant)
    if threshold is None:
        best = most_precise(scores, relevant)
        raise ModelError(
            f"no threshold that keeps {MIN_KEPT} pairs has precision {precision:g}; the highest is "
            f"{relevant[scores >= np.float32(best)].mean():.3f}, at {as_decimal(best)}"
        )
    kept = np.zeros(len(scores), np.bool_)
    missed = 0
    for judged in judged_folds(pairs):
        chosen = lowest_threshold(precision, scores[~judged], relevant[~judged])
        if chosen is None:
            missed += 1
            chosen = most_precise(scores[~judged], relevant[~judged])
        kept[judged] = scores[judged] >= np.float32(chosen)
    return _measured(threshold, kept, relevant, pairs, resamples, missed)


def lowest_threshold(precision: float, scores: Floats32, relevant: Bools) -> float | None:
    """Return the lowest threshold with at least this precision, rounded down to DECIMALS digits if that has
    it too; None if none that keeps MIN_KEPT pairs has it."""
    thresholds, precisions = _precisions(scores, relevant)
    reached = thresholds[precisions >= precision]
    if not len(reached):
        return None
    lowest = float(reached[-1])
    rounded = float(np.floor(lowest * 10**DECIMALS) / 10**DECIMALS)
    kept = scores >= np.float32(rounded)
    return rounded if relevant[kept].mean() >= precision else lowest


def most_precise(scores: Floats32, relevant: Bools) -> float:
    """Return the threshold with the highest precision of those that keep MIN_KEPT pairs."""
    thresholds, precisions = _precisions(scores, relevant)
    return float(thresholds[precisions.argmax()])


def _precisions(scores: Floats32, relevant: Bools) -> tuple[Floats32, Floats]:
    """Return the thresholds that keep MIN_KEPT pairs, or all if they are fewer, falling, and the precision of
    each."""
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    counts = np.arange(1, len(scores) + 1)
    precisions = np.cumsum(relevant[order]) / counts
    is_end = np.append(falling[1:] < falling[:-1], True)  # equal scores are kept together
    allowed = is_end & (counts >= min(MIN_KEPT, len(scores)))
    return falling[allowed], precisions[allowed]


def as_decimal(threshold: float) -> str:
    """Return the shortest decimal that cuts scores as the threshold does: scores are float32."""
    return np.format_float_positional(np.float32(threshold), trim="-")


def _measured(
    threshold: float,
    kept: Bools,
    relevant: Bools,
    pairs: Sequence[LabelledPair],
    resamples: int,
    missed: int = 0,
) -> Cut:
    """Return the figures of the pairs that are kept, with intervals by bootstrap over queries."""
    queries = np.array(numbers_of_queries(pairs))
    queries_of = {
        "precision": len(np.unique(queries[kept])),
        "recall": len(np.unique(queries[relevant])),
        "kept": len(np.unique(queries)),
    }
    clusters = queries % CLUSTERS  # one per query, if there are at most so many
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
    intervals = intervals_of(draws(statistics, counts, queries_of.__getitem__), counts)
    return Cut(threshold, **intervals, fifths_missed=missed)
