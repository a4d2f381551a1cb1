"""The structures that a search tries, by each method: for a number of heads kept, and for a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from models.attention import head_rows
from models.checkpoint.config import ModelConfig
from models.classifier import Classifier
from models.compress.structure import Structure
from models.study.base import Head, Heads
from models.study.gradients import Gradients
from models.study.search.knapsack import Elimination, Option, cheapest, eliminate, in_order
from models.study.search.times import Times

HEADS, UNITS, LAYERS = "heads", "units", "layers"

Floats = NDArray[np.float64]


def fisher_order(gradients: NDArray[np.float32], held: Sequence[Head]) -> Heads:
    """Return the order in which heads go: always the one that adds least to the cost of all that went.

    gradients: (n, layers, heads). held: the heads of the checkpoint. The Fisher information of all gates
    together says what a set costs, as in knapsack.py.
    """
    of_held = np.stack([gradients[:, layer, head] for layer, head in held], 1)
    return tuple(held[i] for i in eliminate(of_held, shrink=False).order)


def michel_order(gradients: NDArray[np.float32], held: Sequence[Head]) -> Heads:
    """Order by ascending mean |∂loss/∂gate|, each layer scaled to unit length (Michel et al. 2019, §4.1,
    https://arxiv.org/abs/1905.10650)."""
    importance = np.abs(gradients).mean(0, dtype=np.float64)
    length = np.linalg.norm(importance, axis=1, keepdims=True)
    return _ascending(importance / np.where(length > 0, length, 1), held)


def magnitude_order(classifier: Classifier, held: Sequence[Head]) -> Heads:
    """Order by ascending norm of W^O·W^V."""
    return _ascending(head_norms(classifier), held)


def random_order(held: Sequence[Head], seed: int) -> Heads:
    """Return a random order."""
    return tuple(held[i] for i in np.random.default_rng(seed).permutation(len(held)))


def _ascending(importance: Floats, held: Sequence[Head]) -> Heads:
    return tuple(sorted(held, key=lambda head: float(importance[head])))


@dataclass(frozen=True)
class Planner:
    """Plans structures by measured times.

    what: which of heads, units and layers may go. heads, units: in which order a layer's parts go, and what
    that costs.
    """

    config: ModelConfig
    times: Times
    what: tuple[str, ...]
    heads: list[Elimination]
    units: list[Elimination]

    @property
    def whole_seconds(self) -> float:
        """Return the time of the intact network."""
        return self.seconds(Structure.whole(self.config))

    def seconds(self, structure: Structure) -> float:
        """Return the predicted time of a structure's network."""
        heads, units = structure.kept_heads(self.config), structure.kept_units(self.config)
        return self.times.network([(len(heads[layer]), len(units[layer])) for layer in structure.layers])

    def fitting(self, seconds: float, skipped: Collection[int] = ()) -> Structure | None:
        """Return the structure of least loss without these layers that takes at most `seconds`; None if
        there is none."""
        layers = [layer for layer in range(self.config.num_layers) if layer not in skipped]
        groups = []
        for layer in layers:
            last = layer == layers[-1]
            groups += [self._head_options(layer, last, layer == layers[0]), self._unit_options(layer, last)]
        chosen = cheapest(groups, seconds - self.times.other)
        if chosen is None:
            return None
        structure = replace(Structure.whole(self.config), skipped=frozenset(skipped))
        for layer, heads, units in zip(layers, chosen[::2], chosen[1::2], strict=True):
            held = self.config.kept_heads[layer]
            gone = self.heads[layer].order[: len(held) - heads.kept]
            structure.heads[layer, [held[i] for i in gone]] = 0
            order = self.units[layer].order
            structure.units[layer, order[: len(order) - units.kept]] = 0
        return structure

    def _head_options(self, layer: int, last: bool, first: bool) -> list[Option]:
        """Return how many heads a layer may keep; the first layer keeps one, because some head must stay."""
        held = len(self.config.kept_heads[layer])
        counts = range(min(1 if first else 0, held), held + 1) if HEADS in self.what else (held,)
        costs = self.heads[layer].costs
        return [Option(n, self.times.attention_half(n, last=last), costs[held - n]) for n in counts]

    def _unit_options(self, layer: int, last: bool) -> list[Option]:
        width = self.config.widths[layer]
        counts = sorted({min(n, width) for n in self.times.units}) if UNITS in self.what else [width]
        costs = self.units[layer].costs
        return [Option(n, self.times.feed_forward_half(n, last=last), costs[width - n]) for n in counts]


def by_fisher(config: ModelConfig, times: Times, what: Sequence[str], gradients: Gradients) -> Planner:
    """Return the planner that knows each part's Fisher information."""
    heads = [eliminate(gradients.heads[:, layer, list(held)]) for layer, held in enumerate(config.kept_heads)]
    units = [eliminate(gradients.units[:, layer, :width]) for layer, width in enumerate(config.widths)]
    return Planner(config, times, tuple(what), heads, units)


def by_magnitude(classifier: Classifier, times: Times, what: Sequence[str]) -> Planner:
    """Return the planner that knows only weights."""
    config, norms = classifier.config, head_norms(classifier) ** 2
    heads = [in_order(norms[layer, list(held)]) for layer, held in enumerate(config.kept_heads)]
    units = [in_order(of_layer) for of_layer in unit_norms(classifier)]
    return Planner(config, times, tuple(part for part in what if part != LAYERS), heads, units)


def without_top_layers(planner: Planner, seconds: float) -> Structure | None:
    """Return the network without as few of the last layers as fit into `seconds`."""
    whole, layers = Structure.whole(planner.config), planner.config.num_layers
    skipped = (frozenset(range(layers - gone, layers)) for gone in range(1, layers))
    return _first(planner, (replace(whole, skipped=some) for some in skipped), seconds)


def at_random(planner: Planner, seconds: float, seed: int) -> Structure | None:
    """Return a structure that keeps the same share of heads and units of each layer, drawn at random: the
    largest share that fits into `seconds`."""
    config, rng = planner.config, np.random.default_rng([seed, 12])
    orders = [
        (rng.permutation(held), rng.permutation(width))
        for held, width in zip(config.kept_heads, config.widths, strict=True)
    ]

    def keeping(share: float) -> Structure:
        structure = Structure.whole(config)
        for layer, (heads, units) in enumerate(orders):
            if HEADS in planner.what:
                structure.heads[layer, heads[max(1, round(share * len(heads))) :]] = 0
            if UNITS in planner.what:
                kept = min(len(units), max(16, 16 * round(share * len(units) / 16)))
                structure.units[layer, units[kept:]] = 0
        return structure

    return _first(planner, map(keeping, np.linspace(1, 0, 65)[:-1]), seconds)


def _first(planner: Planner, structures: Iterator[Structure], seconds: float) -> Structure | None:
    """Return the first structure that takes at most `seconds`; None if none does."""
    return next((one for one in structures if planner.seconds(one) <= seconds), None)


def head_norms(classifier: Classifier) -> Floats:
    """Return the Frobenius norm of W^O·W^V, the linear map that a head applies to tokens: (layers, heads)."""
    norms = np.zeros((classifier.num_layers, classifier.num_heads))
    for number, kept in enumerate(classifier.config.kept_heads):
        attention = classifier.network.layers[number].heads
        if attention is None:
            continue
        size, width = attention.head_size, len(kept) * attention.head_size
        value = attention.query_key_value.weight[2 * width :].float()
        output = attention.output.weight.float()
        for index, head in enumerate(kept):
            rows = head_rows([index], size)
            norms[number, head] = float((output[:, rows] @ value[rows]).norm())
    return norms


def unit_norms(classifier: Classifier) -> list[Floats]:
    """Return ‖down‖²·‖up‖² of each unit of each layer."""
    weights = [
        (layer.units.up.weight.float(), layer.units.down.weight.float())
        for layer in classifier.network.layers
    ]
    return [(up.square().sum(1) * down.square().sum(0)).double().numpy(force=True) for up, down in weights]
