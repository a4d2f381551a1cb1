"""Calibration: do probabilities mean what they say?

The expected calibration error (Guo et al. 2017) looks at the likeliest grade alone. A model may give a
grade half of its true share of the pairs and still look well there, so each grade's mean probability stands
beside its share.
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
    probability, how often it is right, and the number of pairs. mean_probabilities, shares: of each grade.
    """
    pairs, grades = probabilities.shape
    likeliest, right = probabilities.max(1), probabilities.argmax(1) == truth
    bins = _bins_of(likeliest)
    sizes, sure, correct = (
        np.bincount(bins, column, CALIBRATION_BINS) for column in (np.ones(pairs), likeliest, right)
    )
    held = sizes > 0
    return {
        "confidence": (sure[held] / sizes[held]).tolist(),
        "accuracy": (correct[held] / sizes[held]).tolist(),
        "pairs": sizes[held].tolist(),
        "mean_probabilities": probabilities.mean(0).tolist(),
        "shares": (np.bincount(truth, minlength=grades) / pairs).tolist(),
    }


def gaps(truth: Ints, probabilities: Floats, cluster_of: Ints, clusters: int) -> Floats:
    """Return by cluster of queries the summed gaps of each bin of the likeliest grade, (clusters, bins):
    its probability minus how often it came true."""
    summed = np.zeros((clusters, CALIBRATION_BINS))
    confidence = probabilities.max(1)
    np.add.at(summed, (cluster_of, _bins_of(confidence)), confidence - (probabilities.argmax(1) == truth))
    return summed


def _bins_of(confidence: Floats) -> Ints:
    """Return the number of each confidence's bin, of CALIBRATION_BINS between 0 and 1."""
    return np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
