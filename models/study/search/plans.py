"""Chooses what to remove for a number of heads or for a time, by the Fisher information of the parts' gates.

Kwon et al. 2022, §4 (https://arxiv.org/abs/2204.09656). Removing a set of heads (or of a layer's units) costs
½·Σ F[i, j] over i, j in the set, F being the Fisher information of their gates. Parts are ordered by greedy
elimination, so that of two parts that do the same work only one is cheap. For a time, how many each layer
keeps is a knapsack over the layers' halves with measured times, an integer program.

A gate multiplies the output of its head or unit. The serving network runs fused, prepacked products that
autograd cannot follow; gradients are of the same network on plain float32 torch operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import LinearConstraint, milp
from torch import Tensor

from headroom.models.arrays import Floats, Floats32, Ints
from headroom.models.batch import PackedBatch, batches_by_length, pack
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.masks.head_mask import HeadMask
from headroom.models.network import Network
from headroom.models.selection import Chosen
from headroom.models.study.search.networks import Times, nothing_off
from headroom.models.study.study import Heads

TIME_WEIGHT = 1e-6
"""What all of the time counts beside the largest loss: of equal losses the faster network is chosen."""

TOLERANCE = 1e-9
"""The share of the time that is left for rounding."""

BATCH_TOKENS = 2048
"""Autograd keeps every layer's activations of a batch: about 0.4 MB a token in a network of BERT-base's
shape."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """∂loss/∂gate of each of n pairs: heads (n, layers, heads), units (n, layers, units of the widest layer).
    Parts that the checkpoint does not hold have 0."""

    heads: Floats32
    units: Floats32


def gated_logits(network: Network, batch: PackedBatch, heads: Tensor, units: Tensor) -> Tensor:
    """Return the logits of a network in plain torch under gates.

    heads: (rows, layers, heads); units: (rows, layers, widest layer's units), rows being those of the pack.
    Returns (rows of the pack, labels), least relevant first.
    """
    config = network.config
    selection = []
    for number, layer in enumerate(network.layers):
        is_last = layer is network.layers[-1]
        layer_batch = replace(batch, read=network.reads) if is_last else batch
        head_gates = heads[:, number, list(config.kept_heads[number])]
        unit_gates = units[:, number, : config.widths[number]]
        unit_weights = F.embedding(layer_batch.leaving(batch.row_of_token), unit_gates)
        selection.append(Chosen(layer.heads, layer.units, head_gates, unit_weights))
    return network.logits(batch, selection)[:, list(config.label_order)]


def gradients(
    classifier: Classifier,
    pairs: Sequence[EncodedPair],
    grades: Ints,
    *,
    done: Callable[[int], None] = lambda _: None,
) -> Gradients:
    """Return the gradients at the intact network, float32: of the calibrated cross-entropy, or of one score.

    The gradients of a score itself give the Fisher information of a normal distribution around it. That needs
    no calibration and no grades, and does not vanish where a reranker's scores lie far from 0, as the
    cross-entropy does. With 86, 50 and 29 of the shipped model's 144 heads it ordered at least as many pairs
    of titles correctly, on 67 other queries, as the gradients of cross-entropy and of RankNet's loss.
    grades: (n,) from 0. done: called with the number of pairs of each finished batch.
    """
    config = classifier.config
    network = classifier.network.in_plain_torch()
    device = network.device
    shapes = [(config.num_layers, config.num_heads), (config.num_layers, max(config.widths))]
    slopes = [np.zeros((len(pairs), *shape), np.float32) for shape in shapes]
    truth = torch.from_numpy(grades).to(device)
    bias = torch.tensor(config.bias, device=device)
    for rows in batches_by_length([len(pair) for pair in pairs], BATCH_TOKENS):
        batch = pack([pairs[i] for i in rows], device=device, fill=False)
        order = np.asarray(rows)[batch.order]
        gates = [torch.ones(batch.rows, *shape, device=device, requires_grad=True) for shape in shapes]
        logits = gated_logits(network, batch, *gates) / config.temperature + bias
        if config.is_graded:
            loss = F.cross_entropy(logits, truth[torch.from_numpy(order)], reduction="sum")
        else:
            loss = logits.sum()
        gate_slopes = torch.autograd.grad(loss, gates, materialize_grads=True)
        for all_slopes, batch_slopes in zip(slopes, gate_slopes, strict=True):
            all_slopes[order] = batch_slopes.numpy(force=True)
        done(batch.rows)
    return Gradients(heads=slopes[0], units=slopes[1])


class Elimination(NamedTuple):
    """The parts of one half of one layer in the order in which they go."""

    order: Ints  # (k,), the first to go first
    costs: Floats  # (k + 1,), the loss after 0, 1, … k went; it never falls


class Option(NamedTuple):
    """A way to keep some of a half's parts: how many, the seconds that it takes, and the loss."""

    kept: int
    seconds: float
    cost: float


def eliminate(gradients: Floats32, *, shrink: bool = True) -> Elimination:
    """Order parts by greedy elimination. gradients: (n, k) of the loss with respect to their gates.

    With few pairs, F has fewer independent rows than parts and would call sets free of cost whose gradients
    cancel by chance. So, with `shrink`, its off-diagonal part counts for n / (n + k) only.
    """
    pairs, parts = gradients.shape
    g = gradients.astype(np.float64)
    information = g.T @ g / max(pairs, 1)
    diagonal = information.diagonal().copy()
    if shrink:
        information *= pairs / (pairs + parts)
    np.fill_diagonal(information, diagonal)
    adds = diagonal / 2
    order = np.empty(parts, np.int64)
    costs = np.zeros(parts + 1)
    for step in range(parts):
        part = int(adds.argmin())
        order[step] = part
        costs[step + 1] = costs[step] + adds[part]
        adds += information[part]
        adds[part] = np.inf
    return Elimination(order, np.maximum.accumulate(np.maximum(costs, 0)))


def fisher_order(gradients: Floats32, held: Heads) -> Heads:
    """Return the order in which the heads of all layers go: always the one that adds least to the cost.

    gradients: (n, layers, heads). held: the heads of the checkpoint.
    """
    of_held = np.stack([gradients[:, layer, head] for layer, head in held], 1)
    return tuple(held[i] for i in eliminate(of_held, shrink=False).order)


def cheapest(groups: Sequence[Sequence[Option]], seconds: float) -> list[Option] | None:
    """Choose one option of each group so that their times fit into `seconds` and their loss is least.

    Of equal losses the one that takes less time is chosen. Returns None if nothing fits.
    """
    if seconds <= 0:
        return None
    options = [option for group in groups for option in group]
    shares = np.array([option.seconds for option in options]) / seconds
    costs = np.array([option.cost for option in options])
    one_of_each = np.repeat(np.eye(len(groups)), [len(group) for group in groups], axis=1)
    solution = milp(
        costs / max(costs.max(), TIME_WEIGHT) + TIME_WEIGHT * shares,
        integrality=np.ones(len(options)),
        bounds=(0, 1),
        constraints=[LinearConstraint(one_of_each, 1, 1), LinearConstraint(shares, ub=1 - TOLERANCE)],
        options={"mip_rel_gap": 0.0},
    )
    return None if solution.x is None else [options[i] for i in np.flatnonzero(solution.x > 0.5)]


@dataclass(frozen=True)
class Planner:
    """Plans smaller networks by measured times."""

    config: ModelConfig
    times: Times
    what: tuple[str, ...]  # which of heads, units and layers may go
    heads: list[Elimination]  # by layer
    units: list[Elimination]

    @classmethod
    def of(cls, config: ModelConfig, times: Times, what: tuple[str, ...], gradients: Gradients) -> Planner:
        """Return the planner that goes by these gradients."""
        heads = [
            eliminate(gradients.heads[:, layer, list(held)]) for layer, held in enumerate(config.kept_heads)
        ]
        units = [eliminate(gradients.units[:, layer, :width]) for layer, width in enumerate(config.widths)]
        return cls(config, times, what, heads, units)

    def seconds(self, mask: HeadMask) -> float:
        """Return the predicted time of the network that a mask leaves."""
        heads = self.config.heads_kept(mask)
        units = self.config.units_kept(mask)
        return self.times.network([(len(heads[layer]), len(units[layer])) for layer in mask.layers_kept])

    def fitting(self, seconds: float, skipped: Collection[int] = ()) -> HeadMask | None:
        """Return the mask of least loss without these layers that takes at most `seconds`; None if
        there is none."""
        layers, options = self._options(skipped)
        chosen = cheapest(options, seconds - self.times.outside_layers)
        if chosen is None:
            return None
        matrix, units_off = nothing_off(self.config)
        for layer, heads, units in zip(layers, chosen[::2], chosen[1::2], strict=True):
            held = np.array(self.config.kept_heads[layer], np.int64)
            matrix[layer, held[self.heads[layer].order[: len(held) - heads.kept]]] = 0
            width = self.config.widths[layer]
            units_off[layer, self.units[layer].order[: width - units.kept]] = True
        return HeadMask(matrix, tuple(skipped), units_off)

    def minimum_seconds(self, skipped: Collection[int] = ()) -> float:
        """Return the time of the fastest structure without these layers."""
        fastest = (min(one.seconds for one in group) for group in self._options(skipped)[1])
        return self.times.outside_layers + sum(fastest)

    def _options(self, skipped: Collection[int]) -> tuple[list[int], list[list[Option]]]:
        """Return the layers that stay, and how many heads and how many units each of them may keep.

        The first layer keeps a head, because some head must stay.
        """
        layers = [layer for layer in range(self.config.num_layers) if layer not in skipped]
        groups = []
        for layer in layers:
            held = len(self.config.kept_heads[layer])
            width = self.config.widths[layer]
            heads: Sequence[int] = [held]
            if "heads" in self.what:
                heads = range(min(1, held) if layer == layers[0] else 0, held + 1)
            units = [width]
            if "units" in self.what:
                units = sorted({min(count, width) for count in self.times.units})
            last = layer == layers[-1]
            groups += [
                _group(heads, partial(self.times.attention_half, last=last), self.heads[layer]),
                _group(units, partial(self.times.feed_forward_half, last=last), self.units[layer]),
            ]
        return layers, groups


def _group(counts: Iterable[int], seconds: Callable[[int], float], elimination: Elimination) -> list[Option]:
    return [Option(count, seconds(count), elimination.costs[-1 - count]) for count in counts]


def shuffled(mask: HeadMask, config: ModelConfig, seed: int) -> HeadMask:
    """Return a mask that keeps as many heads and units of each layer, drawn at random."""
    rng = np.random.default_rng([seed, 10])
    matrix, units_off = nothing_off(config)
    heads = config.heads_kept(mask)
    units = config.units_kept(mask)
    for layer in mask.layers_kept:
        held = config.kept_heads[layer]
        matrix[layer, rng.permutation(held)[len(heads[layer]) :]] = 0
        units_off[layer, rng.permutation(config.widths[layer])[len(units[layer]) :]] = True
    return HeadMask(matrix, mask.skipped, units_off)
