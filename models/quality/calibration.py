"""Calibration: do probabilities mean what they say?

The expected calibration error (Guo et al. 2017) looks at the likeliest grade alone. A model may give a grade
half of its true share of the pairs and still look well there, so the class-wise error (Kull et al. 2019)
looks at each grade's probability. Both are above 0 for a perfect model, too: its errors are `floor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.quality.bootstrap import Floats

Ints = NDArray[np.int64]

CALIBRATION_BINS = 15


@dataclass(frozen=True, slots=True)
class Curve:
    """The bins of equal width that hold a pair: mean confidence, share of right grades, number of pairs."""

    confidence: Floats
    accuracy: Floats
    pairs: Floats


def curve(truth: Sequence[int] | Ints, probabilities: Floats) -> Curve:
    """Return the bins that the expected calibration error sums over (Guo et al. 2017).

    truth: (n,) grades; probabilities: (n, grades).
    """
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == np.asarray(truth)
    bins = bins_of(confidence)
    pairs = np.bincount(bins, minlength=CALIBRATION_BINS).astype(np.float64)
    held = pairs > 0
    sums = (np.bincount(bins, values, CALIBRATION_BINS)[held] for values in (confidence, right))
    sure, hits = (total / pairs[held] for total in sums)
    return Curve(sure, hits, pairs[held])


def as_json(truth: Ints, probabilities: Floats) -> dict[str, Any]:
    """Return the calibration of (n, grades) probabilities as plain values.

    confidence, accuracy, pairs: the curve of the likeliest grade. by_expected_grade: bins of equal width of
    the expected grade, each with its mean `expected` and `true` grade. mean_probabilities, shares: of each
    grade. floor: the errors of a perfect model.
    """
    pairs, grades = probabilities.shape
    expected = probabilities @ np.arange(grades)
    bins = bins_of(np.clip(expected / (grades - 1), 0, 1))
    held, counts = np.unique(bins, return_counts=True)
    means = {
        name: [float(values[bins == place].mean()) for place in held]
        for name, values in (("expected", expected), ("true", truth))
    }
    points = curve(truth, probabilities)
    return {
        "confidence": points.confidence.tolist(),
        "accuracy": points.accuracy.tolist(),
        "pairs": points.pairs.tolist(),
        "by_expected_grade": {**means, "pairs": counts.tolist()},
        "mean_probabilities": probabilities.mean(0).tolist(),
        "shares": (np.bincount(truth, minlength=grades) / pairs).tolist(),
        "floor": floor(probabilities),
    }


def gaps(truth: Ints, probabilities: Floats, query_of: Ints, queries: int) -> tuple[Floats, Floats]:
    """Return by query the summed gaps of each bin: probability minus how often it came true.

    (queries, bins) for the likeliest grade, and (queries, grades × bins) for each grade.
    """
    grades = probabilities.shape[1]
    predicted = probabilities.argmax(1)
    confidence = probabilities.max(1)
    likeliest = np.zeros((queries, CALIBRATION_BINS))
    np.add.at(likeliest, (query_of, bins_of(confidence)), confidence - (predicted == truth))
    each = np.zeros((queries, grades * CALIBRATION_BINS))
    for grade in range(grades):
        probability = probabilities[:, grade]
        place = grade * CALIBRATION_BINS + bins_of(probability)
        np.add.at(each, (query_of, place), probability - (truth == grade))
    return likeliest, each


def floor(probabilities: Floats, *, draws: int = 200, seed: int = 0) -> dict[str, float]:
    """Return the errors of a perfect model: the means over grades drawn from the probabilities themselves."""
    rng = np.random.default_rng(seed)
    pairs, grades = probabilities.shape
    bounds = probabilities.cumsum(1)[:, :-1]
    one = np.zeros(pairs, np.int64)
    errors = np.empty((draws, 2))
    for number in range(draws):
        truth = (rng.random((pairs, 1)) > bounds).sum(1)
        likeliest, each = gaps(truth, probabilities, one, 1)
        errors[number] = np.abs(likeliest).sum() / pairs, np.abs(each).sum() / pairs / grades
    return {"ece": float(errors[:, 0].mean()), "classwise_ece": float(errors[:, 1].mean())}


def bins_of(confidence: Floats) -> np.ndarray:
    """Return the number of each confidence's bin, of CALIBRATION_BINS between 0 and 1."""
    bins: np.ndarray = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return bins
