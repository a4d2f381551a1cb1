"""Makes the smaller networks of a search in memory, evaluates them and measures their speed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from torch import Tensor

from models.checkpoint.hub import locate
from models.checkpoint.tensors import read_tensors
from models.classifier import Classifier
from models.compress.prune import cut
from models.device import one_thread
from models.masks.head_mask import HeadMask
from models.networks import build
from models.quality.bootstrap import Interval
from models.quality.evaluation import Evaluation
from models.study.base import Judged
from models.study.inputs import spread_over_queries
from models.study.runner import Runner
from models.study.study import Study

SAMPLE = 256
"""Pairs on which candidates are compared with the intact model, taken from each query in turn, and pairs of
which the speed is measured."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The measured speed of a network on one thread.

    pairs_per_second: the median of the rounds. speedup: the median over rounds of the ratio to the intact
    model, with the lowest and the highest one.
    """

    pairs_per_second: float
    speedup: Interval


class Networks:
    """The checkpoint's tensors, and the networks that are cut out of them."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._sample = study.data.take(spread_over_queries(study.data.query_of, SAMPLE, study.seed))

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Return the checkpoint's tensors."""
        return read_tensors(locate(self.study.model), self.study.classifier.config)

    def smaller(self, mask: HeadMask) -> Classifier:
        """Return the classifier that a mask leaves, as `headroom prune` would write it."""
        clf = self.study.classifier
        tensors, config = cut(self.tensors, clf.config, mask)
        network = build(
            config, tensors, device=clf.network.device, dtype=clf.network.dtype,
            deterministic=clf.network.deterministic,
        )  # fmt: skip
        return Classifier(clf.name, config, clf.tokenizer, network, {})

    def evaluate(self, masks: Sequence[HeadMask], runner: Runner, what: str) -> list[Evaluation]:
        """Return the quality under each mask on the runner's pairs. Heads alone are masked, in one pass."""
        if not any(one.is_structured for one in masks):
            return runner.evaluate([one.matrix for one in masks], what)
        return [
            runner.evaluation(self._logits(self.smaller(one), runner.data, one.id, what)) for one in masks
        ]

    def divergence(self, mask: HeadMask) -> float:
        """Return the mean Kullback–Leibler divergence of the grades under a mask from the intact model's."""
        before, after = self._intact, self._log_probabilities(self.smaller(mask), mask.id)
        return float((np.exp(before) * (before - after)).sum(1).mean())

    def paces(self, masks: Sequence[HeadMask]) -> list[Pace]:
        """Time the intact model and the others in turns; the intact one's pace comes first."""
        every = [self.study.classifier, *map(self.smaller, masks)]
        pairs = (self.study.holdout or self.study.data).pairs[:SAMPLE]
        seconds = self.in_turns([partial(one.score, pairs) for one in every], "speed")
        return [
            Pace(
                len(pairs) / float(np.median(own)),
                Interval(float(np.median(ratio)), float(ratio.min()), float(ratio.max())),
            )
            for own, ratio in zip(seconds.T, (seconds[:, :1] / seconds).T, strict=True)
        ]

    def in_turns(self, calls: Sequence[Callable[[], object]], what: str) -> NDArray[np.float64]:
        """Return the seconds of calls that take turns on one thread, (rounds, calls), after a round that only
        sets things up. what: the name of this work on the progress bar."""
        seconds = np.empty((1 + self.study.effort.rounds, len(calls)))
        self.study.progress.start(what, seconds.size)
        with one_thread():
            for turn, number in np.ndindex(*seconds.shape):
                started = time.perf_counter()
                calls[number]()
                seconds[turn, number] = time.perf_counter() - started
                self.study.progress.advance()
        return seconds[1:]

    @cached_property
    def _intact(self) -> NDArray[np.float64]:
        return self._log_probabilities(self.study.classifier, "intact")

    def _log_probabilities(self, classifier: Classifier, name: str) -> NDArray[np.float64]:
        logits = self._logits(classifier, self._sample, name, "candidates").astype(np.float64)
        return np.asarray(log_softmax(logits / classifier.config.temperature, axis=1))

    def _logits(self, classifier: Classifier, data: Judged, name: str, what: str) -> NDArray[np.float32]:
        """Return a classifier's logits, (n, grades). name: distinguishes it in the cache."""
        own = self.study.runner
        runner = Runner(classifier, data, own.cache, f"{own.identity} {name}", own.progress)
        logits: NDArray[np.float32] = runner.logits([classifier.all_heads.matrix], what)[0]
        return logits
