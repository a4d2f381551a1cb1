"""Makes the smaller networks of a search in memory, evaluates them, and measures on this machine their speed
and what a layer costs by heads kept and by units kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from scipy.special import log_softmax

from headroom.models.arrays import Bools, Floats, Floats32
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.tensors import TensorDict, read_tensors
from headroom.models.classifier import Classifier
from headroom.models.compress.prune import cut
from headroom.models.device import in_turns, one_thread
from headroom.models.masks.head_mask import HeadMask
from headroom.models.networks import build
from headroom.models.quality.bootstrap import Interval
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.speed import speedup
from headroom.models.study.pairs import Judged
from headroom.models.study.runner import Runner
from headroom.models.study.study import Study

SAMPLE = 256
"""Pairs on which candidates are compared with the intact model, taken from each query in turn, and pairs of
which the speed is measured."""

TOKENS = 2048
"""About this many tokens are in the batch that is timed."""

STEPS = 12
"""At most this many counts of heads, and of units, above 0 are timed; those between are interpolated."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The measured speed of a network on one thread."""

    pairs_per_second: float  # the median of the rounds
    speedup: Interval  # the median ratio to the intact model, with its 95 % interval


class Networks:
    """The checkpoint's tensors, and the networks that are cut out of them."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._sample = study.data.take(study.data.spread(SAMPLE, study.seed))

    @cached_property
    def tensors(self) -> TensorDict:
        """Return the checkpoint's tensors."""
        return read_tensors(self.study.source, self.study.classifier.config)

    def smaller(self, mask: HeadMask) -> Classifier:
        """Return the classifier that a mask leaves, as `headroom prune` would write it."""
        clf = self.study.classifier
        tensors, config = cut(self.tensors, clf.config, mask)
        network = build(
            config, tensors, device=clf.network.device, dtype=clf.network.dtype,
            deterministic=clf.network.deterministic,
        )  # fmt: skip
        return Classifier(clf.name, config, clf.tokenizer, network, {})

    def evaluate(self, data: Judged, masks: Sequence[HeadMask], what: str) -> list[Evaluation]:
        """Return the quality under each mask on some pairs. Heads alone are masked, in one pass."""
        runner = self.study.runner
        if not any(mask.structure for mask in masks):
            return runner.evaluate(data, [mask.matrix for mask in masks], what)
        return [
            runner.evaluation(data, self._logits(self.smaller(mask), data, mask.id, what)) for mask in masks
        ]

    def divergence(self, mask: HeadMask) -> float:
        """Return the mean Kullback–Leibler divergence of the answers under a mask from the intact model's.

        An answer is a grade, or if there is one score a normal distribution around it, whose variance is that
        of the intact model's scores of all pairs (`plans.gradients` says why).
        """
        after = self._calibrated(self.smaller(mask), mask.id)
        intact = self._intact
        if not self.study.classifier.config.is_graded:
            return float(np.square(after - intact).mean() / 2 / max(intact.var(), np.finfo(np.float64).tiny))
        before = log_softmax(intact, axis=1)
        return float((np.exp(before) * (before - log_softmax(after, axis=1))).sum(1).mean())

    def paces(self, masks: Sequence[HeadMask]) -> list[Pace]:
        """Return the speed of networks that take turns; the first one is the intact model."""
        pairs = (self.study.holdout or self.study.data).pairs[:SAMPLE]
        seconds = self.in_turns([partial(self.smaller(one).score, pairs) for one in masks], "speed")
        return [
            Pace(len(pairs) / float(np.median(of_mask)), speedup(before=seconds[:, 0], after=of_mask))
            for of_mask in seconds.T
        ]

    def in_turns(self, calls: Sequence[Callable[[], object]], what: str) -> Floats:
        """Return the seconds of calls that take turns on one thread, (rounds, calls), after a round that only
        sets things up. what: the name of this work on the progress bar."""
        rounds = self.study.effort.rounds
        self.study.progress.start(what, (1 + rounds) * len(calls))
        with one_thread():
            return in_turns(calls, rounds, self.study.progress.advance)

    def shortest_seconds(self, masks: Sequence[HeadMask]) -> Floats:
        """Return the shortest time of each network for a batch of about TOKENS tokens, (masks,)."""
        encoded = self.study.classifier.tokenizer.encode(self.study.data.pairs[: TOKENS // 4])
        tokens = np.cumsum([len(pair) for pair in encoded])
        batch = encoded[: max(1, int(np.searchsorted(tokens, TOKENS)))]
        calls = [partial(self.smaller(mask).forward, batch) for mask in masks]
        return np.asarray(self.in_turns(calls, "time of a layer's parts").min(0))

    @cached_property
    def _intact(self) -> Floats:
        return self._calibrated(self.study.classifier, "intact")

    def _calibrated(self, classifier: Classifier, name: str) -> Floats:
        """Return the calibrated logits of the sample, (n, grades)."""
        logits = self._logits(classifier, self._sample, name, "candidates").astype(np.float64)
        config = classifier.config
        return np.asarray(logits / config.temperature + np.array(config.bias))

    def _logits(self, classifier: Classifier, data: Judged, name: str, what: str) -> Floats32:
        """Return a classifier's logits, (n, grades). name: distinguishes it in the cache."""
        parent = self.study.runner
        runner = Runner(classifier, parent.cache, f"{parent.identity} {name}", parent.progress)
        logits: Floats32 = runner.logits(data, [classifier.all_heads.matrix], what)[0]
        return logits


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds of one thread for a batch of about TOKENS tokens."""

    heads: tuple[int, ...]  # the numbers that were measured, ascending
    units: tuple[int, ...]
    attention: Floats  # (heads,), a layer's half with attention, by heads kept
    feed_forward: Floats  # (units,), its other half
    last: tuple[float, float]  # the shares of both that the last layer takes: first tokens may be enough
    outside_layers: float  # embeddings and classifier

    def attention_half(self, heads: int, *, last: bool) -> float:
        """Return the seconds of the half with attention."""
        return float(np.interp(heads, self.heads, self.attention)) * (self.last[0] if last else 1)

    def feed_forward_half(self, units: int, *, last: bool) -> float:
        """Return the seconds of the feed-forward half."""
        return float(np.interp(units, self.units, self.feed_forward)) * (self.last[1] if last else 1)

    def network(self, layers: Sequence[tuple[int, int]]) -> float:
        """Return the seconds of a batch. layers: (heads, units) of each layer that stays, lowest first."""
        is_last = [False] * (len(layers) - 1) + [True]
        return self.outside_layers + sum(
            self.attention_half(heads, last=last) + self.feed_forward_half(units, last=last)
            for (heads, units), last in zip(layers, is_last, strict=True)
        )


def measure_times(networks: Networks) -> Times:
    """Time the intact network and smaller ones in turns on one thread, as the service computes a batch.

    The time that a part of a layer takes is the difference between two networks, divided by the number of
    layers. Of each network the shortest time counts, because other work only adds to it.
    """
    config = networks.study.classifier.config
    depth = config.num_layers
    heads = steps(max(map(len, config.kept_heads)), 1)
    units = steps(max(config.widths), 16)
    intact = config.intact_mask
    skipped = tuple(range(1, depth - 1))[: max(1, depth // 2)]
    seconds = networks.shortest_seconds(
        [
            intact,
            *(_kept(config, heads=count) for count in heads),
            *(_kept(config, units=count) for count in units),
            _kept(config, heads=0, only=depth - 1),
            _kept(config, units=units[0], only=depth - 1),
            replace(intact, skipped=skipped),
        ]
    )
    return _times(config, heads, units, len(skipped), seconds)


def _times(
    config: ModelConfig, heads: tuple[int, ...], units: tuple[int, ...], skipped: int, seconds: Floats
) -> Times:
    """Return what each part takes. seconds: of the networks of `measure_times`, (1 + heads + units + 3,)."""
    depth = config.num_layers
    saved = np.maximum(seconds[0] - seconds[1:], 0)
    saved_by_heads = saved[: len(heads)]
    saved_by_units = saved[len(heads) : -3]
    # What the last layer's halves take, as shares of a mean layer's.
    mean_layer = np.maximum([saved_by_heads[0], saved_by_units[0]], 1e-12 * depth) / depth
    last = np.minimum(saved[-3:-1] / mean_layer, 1.5)
    attention = (saved_by_heads[0] - saved_by_heads) / (depth - 1 + last[0])
    feed_forward = (saved_by_units[0] - saved_by_units) / (depth - 1 + last[1])
    layer = saved[-1] / skipped if skipped else seconds[0] / depth
    fixed = max(layer - attention[-1] - feed_forward[-1], 0.0) + 1e-9  # of a layer with all units off
    times = Times(
        heads,
        units,
        attention=np.maximum.accumulate(np.maximum(attention, 1e-9)),
        feed_forward=np.maximum.accumulate(np.maximum(feed_forward, 0)) + fixed,
        last=(float(last[0]), float(last[1])),
        outside_layers=0.0,
    )
    layers = [(len(held), width) for held, width in zip(config.kept_heads, config.widths, strict=True)]
    return replace(times, outside_layers=max(float(seconds[0]) - times.network(layers), 0.0))


def steps(whole: int, multiple: int) -> tuple[int, ...]:
    """Return up to STEPS numbers up to `whole`, multiples of `multiple` but for the last; 0 too for heads."""
    step = max(multiple, -(-whole // (STEPS * multiple)) * multiple)
    counts = {*range(step, whole, step), whole}
    return tuple(sorted(counts | {0} if multiple == 1 else counts))


def _kept(
    config: ModelConfig, heads: int | None = None, units: int | None = None, only: int | None = None
) -> HeadMask:
    """Return the mask that keeps the first heads and units of each layer, or of the layer `only`.

    heads, units: how many; None keeps all. With 0 heads, layer 0 keeps one, because some head must stay.
    """
    matrix, units_off = nothing_off(config)
    for layer in range(config.num_layers) if only is None else [only]:
        if heads is not None:
            minimum = 1 if layer == 0 and only is None else 0
            matrix[layer, list(config.kept_heads[layer][max(heads, minimum) :])] = 0
        if units is not None:
            units_off[layer, units : config.widths[layer]] = True
    return HeadMask(matrix, units_off=units_off)


def nothing_off(config: ModelConfig) -> tuple[Floats32, Bools]:
    """Return the heads' weights and the units that are off, of a mask that keeps everything."""
    return config.intact_mask.matrix.copy(), np.zeros((config.num_layers, config.intermediate_size), np.bool_)
