"""Calibration: do probabilities mean what they say?

The expected calibration error (Guo et al. 2017) looks at the likeliest grade alone. A model may give a
grade half of its true share of the pairs and still look well there, so the class-wise error (Kull et al.
2019) looks at each grade's probability. Both are above 0 for a perfect model, too: its errors are `floor`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.quality.bootstrap import Floats

Ints = NDArray[np.int64]

CALIBRATION_BINS = 15


def as_json(truth: Ints, probabilities: Floats) -> dict[str, Any]:
    """Return the calibration of (n, grades) probabilities as plain values.

    truth: (n,). confidence, accuracy, pairs: of each bin of the likeliest grade that holds a pair: its mean
    probability, how often it is right, and the number of pairs. by_expected_grade: bins of equal width of
    the expected grade, each with its mean `expected` and `true` grade. mean_probabilities, shares: of each
    grade. floor: the errors of a perfect model.
    """
    pairs, grades = probabilities.shape
    expected = probabilities @ np.arange(grades)
    bins = _bins_of(np.clip(expected / (grades - 1), 0, 1))
    predicted, true, sizes = _means(bins, expected, truth)
    likeliest, right = probabilities.max(1), probabilities.argmax(1) == truth
    confidence, accuracy, of_likeliest = _means(_bins_of(likeliest), likeliest, right)
    return {
        "confidence": confidence.tolist(),
        "accuracy": accuracy.tolist(),
        "pairs": of_likeliest.tolist(),
        "by_expected_grade": {
            "expected": predicted.tolist(),
            "true": true.tolist(),
            "pairs": sizes.astype(int).tolist(),
        },
        "mean_probabilities": probabilities.mean(0).tolist(),
        "shares": (np.bincount(truth, minlength=grades) / pairs).tolist(),
        "floor": floor(probabilities),
    }


def gaps(truth: Ints, probabilities: Floats, cluster_of: Ints, clusters: int) -> tuple[Floats, Floats]:
    """Return by cluster of queries the summed gaps of each bin: probability minus how often it came true.

    (clusters, bins) for the likeliest grade, and (clusters, grades × bins) for each grade.
    """
    grades = probabilities.shape[1]
    confidence = probabilities.max(1)
    likeliest = np.zeros((clusters, CALIBRATION_BINS))
    np.add.at(likeliest, (cluster_of, _bins_of(confidence)), confidence - (probabilities.argmax(1) == truth))
    each = np.zeros((clusters, grades, CALIBRATION_BINS))
    for grade in range(grades):
        probability = probabilities[:, grade]
        np.add.at(each[:, grade], (cluster_of, _bins_of(probability)), probability - (truth == grade))
    return likeliest, each.reshape(clusters, -1)


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


def _means(bins: Ints, *columns: NDArray[np.generic]) -> list[Floats]:
    """Return the mean of each column in each bin that holds a pair, and the number of its pairs."""
    sizes = np.bincount(bins, minlength=CALIBRATION_BINS).astype(np.float64)
    held = sizes > 0
    sums = (np.bincount(bins, column, CALIBRATION_BINS) for column in columns)
    return [*(total[held] / sizes[held] for total in sums), sizes[held]]


def _bins_of(confidence: Floats) -> Ints:
    """Return the number of each confidence's bin, of CALIBRATION_BINS between 0 and 1."""
    return np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
