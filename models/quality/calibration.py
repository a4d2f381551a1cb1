"""The calibration curve: how often the likeliest grade is right, by its probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.quality.bootstrap import Floats

CALIBRATION_BINS = 15


@dataclass(frozen=True, slots=True)
class Curve:
    """The bins of equal width that hold a pair: mean confidence, share of right grades, number of pairs."""

    confidence: Floats
    accuracy: Floats
    pairs: Floats


def curve(truth: Sequence[int], probabilities: Floats) -> Curve:
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


def bins_of(confidence: Floats) -> np.ndarray:
    """Return the number of each confidence's bin, of CALIBRATION_BINS between 0 and 1."""
    bins: np.ndarray = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return bins
