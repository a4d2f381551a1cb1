"""The structures that a search tries: what fits into a time, by each method."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from models.attention import head_rows
from models.checkpoint.config import ModelConfig
from models.classifier import Classifier
from models.compress.structure import Structure
from models.study.latency import LatencyTable
from models.study.search.structured.gates import Gradients
from models.study.search.structured.knapsack import Elimination, Option, cheapest, eliminate, in_order

HEADS, UNITS, LAYERS = "heads", "units", "layers"
PARTS = (HEADS, UNITS, LAYERS)


@dataclass(frozen=True)
class Planner:
    """Plans structures by a latency table.

    what: which of PARTS may go. heads, units: in which order a layer's parts go, and what that costs.
    """

    config: ModelConfig
    table: LatencyTable
    what: tuple[str, ...]
    heads: list[Elimination]
    units: list[Elimination]

    @property
    def tokens(self) -> int:
        """Return the tokens of the batch whose time counts: the largest that was measured."""
        return self.table.tokens[-1]

    @property
    def whole_seconds(self) -> float:
        """Return the time of the intact network."""
        return self.seconds(Structure.whole(self.config))

    def seconds(self, structure: Structure) -> float:
        """Return the predicted time of a structure's network."""
        heads, units = structure.kept_heads(self.config), structure.kept_units(self.config)
        layers = [(len(heads[layer]), len(units[layer])) for layer in structure.layers]
        return self.table.network(layers, self.tokens)

    def fitting(self, seconds: float, skipped: Collection[int] = ()) -> Structure | None:
        """Return the structure of least loss without these layers that takes at most `seconds`; None if there
        is none."""
        layers = [layer for layer in range(self.config.num_layers) if layer not in skipped]
        groups = []
        for layer in layers:
            last = layer == layers[-1]
            groups += [self._head_options(layer, last, layer == layers[0]), self._unit_options(layer, last)]
        other = float(np.interp(self.tokens, self.table.tokens, self.table.other))
        chosen = cheapest(groups, seconds - other)
        if chosen is None:
            return None
        structure = Structure.whole(self.config)
        structure = Structure(structure.heads, structure.units, frozenset(skipped))
        for place, layer in enumerate(layers):
            held = self.config.kept_heads[layer]
            gone = self.heads[layer].order[: len(held) - chosen[2 * place].kept]
            structure.heads[layer, [held[i] for i in gone]] = 0
            order = self.units[layer].order
            structure.units[layer, order[: len(order) - chosen[2 * place + 1].kept]] = 0
        return structure

    def _head_options(self, layer: int, last: bool, first: bool) -> list[Option]:
        """Return how many heads a layer may keep; the first layer keeps one, because some head must stay."""
        held = len(self.config.kept_heads[layer])
        counts = range(min(1 if first else 0, held), held + 1) if HEADS in self.what else (held,)
        return [
            Option(n, self.table.attention_half(n, self.tokens, last=last), self.heads[layer].costs[held - n])
            for n in counts
        ]

    def _unit_options(self, layer: int, last: bool) -> list[Option]:
        width = self.config.widths[layer]
        counts = sorted({min(n, width) for n in self.table.units}) if UNITS in self.what else [width]
        return [
            Option(
                n, self.table.feed_forward_half(n, self.tokens, last=last), self.units[layer].costs[width - n]
            )
            for n in counts
        ]


def by_fisher(config: ModelConfig, table: LatencyTable, what: Sequence[str], found: Gradients) -> Planner:
    """Return the planner that knows each part's Fisher information."""
    heads = [eliminate(found.heads[:, layer, list(held)]) for layer, held in enumerate(config.kept_heads)]
    units = [eliminate(found.units[:, layer, :width]) for layer, width in enumerate(config.widths)]
    return Planner(config, table, tuple(what), heads, units)


def by_magnitude(classifier: Classifier, table: LatencyTable, what: Sequence[str]) -> Planner:
    """Return the planner that knows only weights: ‖W^O·W^V‖² of a head, ‖down‖²·‖up‖² of a unit."""
    heads, units = [], []
    for layer in classifier.network.layers:
        norms = np.zeros(0)
        if layer.heads is not None:
            size, width = layer.heads.head_size, layer.heads.count * layer.heads.head_size
            value = layer.heads.query_key_value.weight[2 * width :].float()
            output = layer.heads.output.weight.float()
            norms = np.array(
                [
                    float((output[:, rows] @ value[rows]).square().sum())
                    for rows in (head_rows([place], size) for place in range(layer.heads.count))
                ]
            )
        heads.append(in_order(norms))
        up, down = (part.weight.float() for part in (layer.units.up, layer.units.down))
        units.append(in_order((up.square().sum(1) * down.square().sum(0)).double().numpy(force=True)))
    return Planner(classifier.config, table, tuple(part for part in what if part != LAYERS), heads, units)


def without_top_layers(planner: Planner, seconds: float) -> Structure | None:
    """Return the network without as few of the last layers as fit into `seconds`."""
    whole, layers = Structure.whole(planner.config), planner.config.num_layers
    for gone in range(1, layers):
        structure = Structure(whole.heads, whole.units, frozenset(range(layers - gone, layers)))
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
