"""The speed that a mask gains: pairs per second of the intact model, of the mask at run time and of the
pruned checkpoint."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from models.checkpoint.hub import locate
from models.classifier import Classifier
from models.compress.prune import prune
from models.masks.head_mask import HeadMask
from models.quality.evaluation import Evaluation
from models.study.base import Judged, Matrix
from models.study.runner import Runner
from models.study.study import Study

ROUNDS = 5
PAIRS = 256
"""Pairs in a round: a few batches, so that other work on the machine seldom changes during a round."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a set of heads.

    pairs_per_second: the median of the rounds. speedup: the median over rounds of the ratio to the intact
    model. parameters: how many numbers the weights hold. quality: on the held-out queries; only pruned
    checkpoints have one.
    """

    name: str
    pairs_per_second: float
    speedup: float
    parameters: int
    quality: Evaluation | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """The speeds of all ways.

    ways: the intact model first. pairs: how many in a round. rounds: how often the ways took turns.
    """

    ways: tuple[Way, ...]
    pairs: int
    rounds: int


def measure_speed(study: Study, mask: Matrix | None, scales: Matrix | None) -> Speed:
    """Time the intact model, `mask` at run time, and the checkpoints pruned by `mask` and by `scales`, in
    turns.

    mask, scales: (layers, heads); None is left out. The quality is that of the pruned checkpoint as loaded.
    """
    clf, judged = study.classifier, study.holdout or study.data
    pairs = judged.pairs[:PAIRS]
    ways: list[tuple[str, Classifier, HeadMask | None]] = [("intact", clf, None)]
    with tempfile.TemporaryDirectory() as directory:
        if mask is not None:
            head_mask = HeadMask.from_matrix(mask)
            ways.append(("mask at run time", clf, head_mask))
            ways.append(("pruned checkpoint", _pruned(study, head_mask, Path(directory) / "mask"), None))
        if scales is not None:
            pruned = _pruned(study, scales, Path(directory) / "scales")
            ways.append(("pruned checkpoint, tuned scales", pruned, None))
    runs = [_scoring(classifier, pairs, head_mask) for _, classifier, head_mask in ways]
    study.progress.start("speed", ROUNDS * len(ways))
    for run in runs:  # the second run under a mask cuts its weights out; see models.selection
        run()
        run()
    seconds = np.empty((ROUNDS, len(ways)))
    for turn in range(ROUNDS):
        for place, run in enumerate(runs):
            started = time.perf_counter()
            run()
            seconds[turn, place] = time.perf_counter() - started
            study.progress.advance()
    return Speed(
        tuple(
            Way(
                name,
                len(pairs) / median(seconds[:, place]),
                median(seconds[:, 0] / seconds[:, place]),
                classifier.network.parameters,
                _quality(classifier, judged) if name.startswith("pruned") else None,
            )
            for place, (name, classifier, _) in enumerate(ways)
        ),
        len(pairs),
        ROUNDS,
    )


def _pruned(study: Study, weights: HeadMask | Matrix, directory: Path) -> Classifier:
    source = locate(study.model)
    prune(source, directory, weights)
    clf = study.classifier
    dtype = "bfloat16" if clf.network.dtype.itemsize == 2 else "float32"
    return Classifier.load(directory, str(clf.network.device), dtype, deterministic=clf.network.deterministic)


def _scoring(
    classifier: Classifier, pairs: tuple[tuple[str, str], ...], mask: HeadMask | None
) -> Callable[[], None]:
    def score() -> None:
        classifier.score(pairs, mask)

    return score


def _quality(classifier: Classifier, judged: Judged) -> Evaluation:
    ones = np.ones((classifier.num_layers, classifier.num_heads), np.float32)
    return Runner(classifier, judged).evaluate([ones])[0]
