"""The measured speed of networks: pairs per second on one thread, in turns with the intact model."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from models.classifier import Classifier
from models.device import one_thread
from models.study.study import Study

PAIRS = 256


@dataclass(frozen=True, slots=True)
class Pace:
    """The measured speed of a network.

    pairs_per_second: the median of the rounds. speedup: the median over rounds of the ratio to the intact
    model; low, high: its interval by order statistics, of `coverage`. parameters: of the network."""

    pairs_per_second: float
    speedup: float
    low: float
    high: float
    coverage: float
    parameters: int


def paces(study: Study, classifiers: Sequence[Classifier]) -> list[Pace]:
    """Time the intact model and the others in turns; the intact one's pace comes first."""
    judged = study.holdout or study.data
    every = [study.classifier, *classifiers]
    pairs = judged.pairs[:PAIRS]
    rounds = study.effort.rounds
    study.progress.start("speed", (1 + rounds) * len(every))
    seconds = np.empty((1 + rounds, len(every)))
    with one_thread():
        for turn in range(1 + rounds):  # the first round also sets things up
            for place, classifier in enumerate(every):
                started = time.perf_counter()
                classifier.score(pairs)
                seconds[turn, place] = time.perf_counter() - started
                study.progress.advance()
    return [
        _pace(seconds[1:, 0], seconds[1:, place], len(pairs), every[place]) for place in range(len(every))
    ]


def _pace(intact: np.ndarray, own: np.ndarray, pairs: int, classifier: Classifier) -> Pace:
    ratios = np.sort(intact / own)
    low, high, coverage = median_interval(ratios)
    rate = pairs / median(own)
    return Pace(rate, median(ratios), low, high, coverage, classifier.network.parameters)


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the interval of the median by order statistics with the least coverage of at least 95 %, and the
    coverage; the smallest and the largest value if there are too few. values: ascending."""
    count = len(values)
    if count == 1:
        return float(values[0]), float(values[0]), 0.0
    tails = np.cumsum([math.comb(count, k) for k in range(count // 2)]) / 2**count  # P(at most k are below)
    inner = int(np.count_nonzero(1 - 2 * tails >= 0.95)) - 1
    best = max(inner, 0)
    return float(values[best]), float(values[count - 1 - best]), 1 - 2 * float(tails[best])
