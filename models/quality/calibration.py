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
    """Return the calibration of (n, grades) probabilities as plain values. truth: (n,).

    mean_probabilities, shares: of each grade. floor: the errors of a perfect model.
    """
    pairs, grades = probabilities.shape
    return {
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


def _bins_of(confidence: Floats) -> Ints:
    """Return the number of each confidence's bin, of CALIBRATION_BINS between 0 and 1."""
    return np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
