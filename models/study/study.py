"""One run of `headroom study`: the model, the data and the settings that every kind is given, and how much it
computes: everything, or with `--quick` just enough for a rough answer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.metrics import GRADED, RANKED, Measures
from headroom.models.quality.speed import MIN_ROUNDS
from headroom.models.study import Part
from headroom.models.study.pairs import Judged, quick_sample
from headroom.models.study.runner import Matrix, Runner
from headroom.models.terminal import ProgressBar

Item = TypeVar("Item")

Head = tuple[int, int]
"""(layer, head), numbered as before pruning."""

Heads = tuple[Head, ...]


@dataclass(frozen=True)
class Effort:
    """How much a study computes of each thing."""

    resamples: int = 2_000  # of each bootstrap
    fractions: int = 20  # random: shares of heads off above 0
    draws: int = 20  # random: masks per share
    role_pairs: int = 400  # roles: pairs whose attention is scored
    role_sets: int = 100  # roles: random sets for each comparison
    compared_pairs: int = 100  # similarity: pairs that are compared
    probe_pairs: int = 2_000  # similarity: pairs that probes read
    probe_tokens: int = 6_000  # similarity: tokens of each task, at most
    start_steps: int = 100  # initialisation: steps of each training
    start_pairs: int = 40  # initialisation: held-out pairs on which heads are compared
    shares: tuple[float, ...] = tuple(round(1 - 0.05 * step, 2) for step in range(1, 20))  # search: kept
    random_networks: int = 20  # search: beside the chosen one
    rounds: int = 7  # search: how often each thing is timed


FULL = Effort()

QUICK = Effort(
    resamples=400,
    fractions=10,
    draws=4,
    role_pairs=60,
    role_sets=10,
    compared_pairs=25,
    probe_pairs=200,
    probe_tokens=1_500,
    start_steps=20,
    start_pairs=24,
    shares=(0.8, 0.6, 0.4, 0.3, 0.2),
    random_networks=5,
    rounds=MIN_ROUNDS,
)

QUICK_TITLES = 4
"""Titles per query in a quick study: with fewer there is hardly an order to judge."""

QUICK_PAIRS = 250
"""About this many pairs are in a quick study."""

QUICK_TEST_PAIRS = 1_500
"""About this many are in one whose tests rest on its queries."""

ROUGH = (
    f"This is a rough answer (--quick): few pairs of each file, about {QUICK_TITLES} titles per "
    "query, and few draws. Intervals are wider and small effects are missed. Run the same command "
    "without --quick before you act on it."
)


@dataclass(frozen=True)
class Study:
    """The model, the data and the settings of one run."""

    classifier: Classifier
    data: Judged
    runner: Runner  # evaluates masks
    out: Path  # the directory that the report, masks and plots are written to
    holdout: Judged | None = None
    seed: int = 0  # of every random draw
    margin: float = 0.02  # the largest fall of a judged metric (absolute) that a mask may cost
    what: tuple[str, ...] = ("heads",)  # search: which parts may go (heads, units, layers)
    speedup: float | None = None  # search: how many times as fast the network is to be
    part: Part = "encoder"  # single: whose heads go off one by one
    seeds: int = 5  # initialisation: starts of each kind
    steps: int | None = None  # initialisation: of each training; None: as many as the effort says
    effort: Effort = FULL

    @property
    def source(self) -> Path:
        """Return the directory of the checkpoint."""
        assert self.classifier.directory is not None, "it was loaded"
        return self.classifier.directory

    @property
    def progress(self) -> ProgressBar:
        """Return what receives how far the study is."""
        return self.runner.progress

    @property
    def shape(self) -> tuple[int, int]:
        """Return (layers, heads) of the model before pruning; masks have this shape."""
        return self.classifier.num_layers, self.classifier.num_heads

    @cached_property
    def heads(self) -> Heads:
        """Return the heads that the checkpoint still holds, ascending."""
        kept_heads = self.classifier.config.kept_heads
        return tuple((layer, head) for layer, kept in enumerate(kept_heads) for head in kept)

    @cached_property
    def whole(self) -> Evaluation:
        """Return the evaluation of the model with all heads on."""
        (whole,) = self.runner.evaluate(self.data, [self.without(())], "whole model")
        return whole

    def without(self, off: Iterable[Head]) -> Matrix:
        """Return head weights (layers, heads): 0 for the heads that are off, 1 for all others."""
        weights = np.ones(self.shape, np.float32)
        for head in off:
            weights[head] = 0
        return weights

    def encode(self, rows: Iterable[int]) -> list[EncodedPair]:
        """Return these pairs of the data, tokenized."""
        return self.classifier.tokenizer.encode([self.data.pairs[row] for row in rows])

    def stage(self, what: str, items: Sequence[Item]) -> Iterator[Item]:
        """Yield the items of a stage of the progress; each is done when the next one is asked for."""
        self.progress.start(what, len(items))
        for item in items:
            yield item
            self.progress.advance()

    @property
    def measures(self) -> Measures:
        """Return the metrics that judge the model: of grades, or of one score's order."""
        return GRADED if self.classifier.config.is_graded else RANKED

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the kinds that `all` leaves out: 8-bit weights cannot be trained."""
        return ("initialisation",) if self.classifier.config.int8 else ()

    @property
    def by_time(self) -> bool:
        """Return whether `search` minimises time, not the number of heads."""
        return self.what != ("heads",) or self.speedup is not None


def shortened(kind: str, study: Study) -> Study:
    """Return a quick study of a kind: on few of its pairs. The held-out pairs of a search are never cut,
    because its last test is the same."""
    is_tested = kind in ("single", "layers", "random", "all") and study.part == "encoder"
    pairs = QUICK_TEST_PAIRS if is_tested else QUICK_PAIRS
    return replace(study, data=quick_sample(study.data, pairs, QUICK_TITLES, study.seed), effort=QUICK)
