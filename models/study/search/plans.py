"""The structures that a search by time tries: what fits into a time, by each method."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.checkpoint.config import ModelConfig
from models.classifier import Classifier
from models.compress.structure import Structure
from models.study.gradients import Gradients
from models.study.search.knapsack import Elimination, Option, cheapest, eliminate, in_order
from models.study.search.orders import head_norms, unit_norms
from models.study.search.times import Times

HEADS, UNITS, LAYERS = "heads", "units", "layers"


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
    for gone in range(1, layers):
        structure = replace(whole, skipped=frozenset(range(layers - gone, layers)))
        if planner.seconds(structure) <= seconds:
            return structure
    return None


def at_random(planner: Planner, seconds: float, seed: int) -> Structure | None:
    """Return a structure that keeps the same share of heads and units of each layer, drawn at random: the
    largest share that fits into `seconds`."""
    config, rng = planner.config, np.random.default_rng([seed, 12])
    orders = [
        (rng.permutation(held), rng.permutation(width))
        for held, width in zip(config.kept_heads, config.widths, strict=True)
    ]
    for share in np.linspace(1, 0, 65)[:-1]:
        structure = Structure.whole(config)
        for layer, (heads, units) in enumerate(orders):
            if HEADS in planner.what:
                structure.heads[layer, heads[max(1, round(share * len(heads))) :]] = 0
            if UNITS in planner.what:
                kept = min(len(units), max(16, 16 * round(share * len(units) / 16)))
                structure.units[layer, units[kept:]] = 0
        if planner.seconds(structure) <= seconds:
            return structure
    return None
