"""Measures on this machine what a layer costs by heads kept and by units kept.

Smaller networks are cut out of the checkpoint and timed in turns on one thread, as the service computes a
batch. The time that a part of a layer takes is the difference between two networks, divided by the number
of layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.config import ModelConfig
from models.checkpoint.families import FAMILIES
from models.compress.prune import whole as whole_mask
from models.errors import ModelError
from models.masks.head_mask import HeadMask
from models.study.search.networks import Networks

TOKENS = 2048
STEPS = 12
"""The most numbers of heads, and of units, above 0 that are measured; those between are interpolated."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds of one thread for a batch of about TOKENS tokens.

    heads, units: the numbers that were measured, ascending. attention: (heads,), a layer's half with
    attention, by heads kept. feed_forward: (units,), its other half. last: the shares of both that the last
    layer takes, which may continue with first tokens only. other: embeddings and classifier.
    """

    heads: tuple[int, ...]
    units: tuple[int, ...]
    attention: Floats
    feed_forward: Floats
    last: tuple[float, float]
    other: float

    def attention_half(self, heads: int, *, last: bool = False) -> float:
        """Return the seconds of the half with attention."""
        return float(np.interp(heads, self.heads, self.attention)) * (self.last[0] if last else 1)

    def feed_forward_half(self, units: int, *, last: bool = False) -> float:
        """Return the seconds of the feed-forward half."""
        return float(np.interp(units, self.units, self.feed_forward)) * (self.last[1] if last else 1)

    def network(self, layers: Sequence[tuple[int, int]]) -> float:
        """Return the seconds of a batch. layers: (heads, units) of each layer that stays, lowest first."""
        return self.other + sum(
            self.attention_half(heads, last=last) + self.feed_forward_half(units, last=last)
            for (heads, units), last in zip(layers, [False] * (len(layers) - 1) + [True], strict=True)
        )


def measure_times(networks: Networks) -> Times:
    """Time the intact network and smaller ones."""
    config = networks.study.classifier.config
    depth = config.num_layers
    heads = steps(max(map(len, config.kept_heads)), 1)
    units = steps(max(config.widths), 16)
    whole = _kept(config)
    tried: dict[object, HeadMask] = {"whole": whole}
    tried |= {("heads", count): _kept(config, heads=count) for count in heads}
    tried |= {("units", count): _kept(config, units=count) for count in units}
    tried["last heads"] = _kept(config, heads=0, only=depth - 1)
    tried["last units"] = _kept(config, units=units[0], only=depth - 1)
    gone = [layer for layer in range(1, depth - 1) if is_removable(config, layer)][: max(1, depth // 2)]
    tried["fewer layers"] = replace(whole, skipped=tuple(gone))
    seconds = _shortest(networks, tried)

    def saved(name: object) -> float:
        return max(seconds["whole"] - seconds[name], 0.0)

    # The last layer's own halves, in shares of a mean layer's; then each half of every other layer.
    least = ("units", units[0])
    last = tuple(
        min(saved(own) / max(saved(all_layers) / depth, 1e-12), 1.5)
        for own, all_layers in (("last heads", ("heads", 0)), ("last units", least))
    )
    attention = [(saved(("heads", 0)) - saved(("heads", n))) / (depth - 1 + last[0]) for n in heads]
    variable = [(saved(least) - saved(("units", n))) / (depth - 1 + last[1]) for n in units]
    layer = saved("fewer layers") / len(gone) if gone else seconds["whole"] / depth
    fixed = max(layer - attention[-1] - variable[-1], 0.0)
    made = Times(
        heads,
        units,
        np.maximum.accumulate(np.maximum(attention, 1e-9)),
        np.maximum.accumulate(np.maximum(variable, 0)) + fixed + 1e-9,
        (last[0], last[1]),
        0.0,
    )
    layers = [(len(held), width) for held, width in zip(config.kept_heads, config.widths, strict=True)]
    return replace(made, other=max(seconds["whole"] - made.network(layers), 0.0))


def steps(whole: int, multiple: int) -> tuple[int, ...]:
    """Return up to STEPS numbers up to `whole`, multiples of `multiple` but for the last; 0 too for heads."""
    step = max(multiple, -(-whole // (STEPS * multiple)) * multiple)
    counts = {*range(step, whole, step), whole}
    return tuple(sorted(counts | {0} if multiple == 1 else counts))


def is_removable(config: ModelConfig, layer: int) -> bool:
    """Return whether a checkpoint of this family can do without a layer."""
    try:
        FAMILIES[config.family].check_removable([layer])
    except ModelError:
        return False
    return True


def _kept(
    config: ModelConfig, heads: int | None = None, units: int | None = None, only: int | None = None
) -> HeadMask:
    """Return the mask that keeps so many heads and units of each layer, or of one; one head always stays."""
    matrix = whole_mask(config).matrix.copy()
    off = np.zeros((config.num_layers, config.intermediate_size), np.bool_)
    for layer, held in enumerate(config.kept_heads):
        if only in (None, layer):
            if heads is not None:
                matrix[layer, list(held[heads or (layer == 0 and only is None) :])] = 0
            if units is not None:
                off[layer, units : config.widths[layer]] = True
    return HeadMask(matrix, units_off=off)


def _shortest(networks: Networks, tried: dict[object, HeadMask]) -> dict[object, float]:
    """Return the shortest time of each network, because other work only adds to it."""
    study = networks.study
    encoded = study.classifier.tokenizer.encode(study.data.pairs[: max(1, TOKENS // 4)])
    ends = np.cumsum([len(pair) for pair in encoded])
    batch = encoded[: max(1, int(np.searchsorted(ends, TOKENS)))]
    calls = [partial(networks.smaller(mask).forward, batch) for mask in tried.values()]
    seconds = networks.in_turns(calls, "time of a layer's parts").min(0)
    return dict(zip(tried, seconds.tolist(), strict=True))
