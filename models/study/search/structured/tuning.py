"""Tunes the scales of the heads and units that stay, so that each half of each layer computes nearly what it
did before.

Kwon et al. 2022, §4.3, for both halves. A scale may exceed 1, so the result is no run-time mask: it is folded
into the maps by models.compress.prune.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from models.batch import PackedBatch
from models.checkpoint.tokenizer import EncodedPair
from models.compress.structure import Structure
from models.layer import Layer
from models.ops.torch import normed
from models.study.gradients import DifferentiableNetwork
from models.study.search.tuning import LARGEST, contexts_of, head_outputs, least_squares, ridge_of

SMALLEST = 1e-3
"""The smallest scale of a unit: at 0 it would go, and the width would no longer be the one that was timed."""


def tuned(
    network: DifferentiableNetwork,
    pairs: Sequence[EncodedPair],
    structures: Sequence[Structure],
    *,
    done: Callable[[int], None] = lambda _: None,
) -> list[Structure]:
    """Return the structures with tuned scales, 0 to LARGEST, of what they keep.

    The halves are tuned from the lowest layer up. The scales of a half minimise the squared difference
    between the residual stream after it and that of the intact model, over all tokens of `pairs`, given the
    tuned halves below. done: called after each layer of each structure.
    """
    heads = [np.where(s.heads > 0, 1, 0).astype(np.float32) for s in structures]
    units = [np.where(s.units > 0, 1, 0).astype(np.float32) for s in structures]
    with torch.inference_mode():
        batches = list(network.batches(pairs))
        intact = [network.network.embed(batch) for batch in batches]
        streams = [list(intact) for _ in structures]
        for number, layer in enumerate(network.network.layers):
            contexts = contexts_of(network, number, intact, batches)
            sums = _after_heads(network, number, intact, contexts)
            middle = [normed(x, layer.attention_norm) for x in sums]
            inner = [layer.units.inner(normed(x, layer.feed_forward_input_norm)) for x in middle]
            intact = [layer.units.down.added(a, x) for a, x in zip(inner, middle, strict=True)]
            for place, structure in enumerate(structures):
                if number not in structure.skipped:
                    streams[place] = _tune_layer(
                        network, number, streams[place], batches, (sums, intact),
                        heads[place][number], units[place][number],
                    )  # fmt: skip
                done(1)
            intact = [normed(y, layer.units.down.norm) for y in intact]
    return [replace(s, heads=h, units=u) for s, h, u in zip(structures, heads, units, strict=True)]


def _tune_layer(
    network: DifferentiableNetwork,
    number: int,
    streams: list[Tensor],
    batches: Sequence[PackedBatch],
    wanted: tuple[list[Tensor], list[Tensor]],
    heads: np.ndarray,
    units: np.ndarray,
) -> list[Tensor]:
    """Set the scales of one layer, in place, and return what leaves it with them.

    wanted: the intact model's residual stream after the heads and after the units, before any norm.
    """
    layer, held = network.network.layers[number], network.config.kept_heads[number]
    contexts = contexts_of(network, number, streams, batches)
    kept = [i for i, head in enumerate(held) if heads[head] > 0]
    if kept:
        bias = layer.attention_bias
        targets = [(y - x - bias).flatten() for y, x in zip(wanted[0], streams, strict=True)]
        outputs = [head_outputs(network, number, x, c) for x, c in zip(streams, contexts, strict=True)]
        designs = [parts[:, kept].transpose(1, 2).flatten(0, 1) for parts in outputs]
        for i, scale in zip(kept, least_squares(designs, targets), strict=True):
            heads[held[i]] = scale
    scales = torch.from_numpy(heads[list(held)]).to(network.device)
    contexts = [
        None if c is None else (c.view(len(c), len(held), -1) * scales[:, None]).flatten(1) for c in contexts
    ]
    middle = [normed(x, layer.attention_norm) for x in _after_heads(network, number, streams, contexts)]
    inner = [layer.units.inner(normed(x, layer.feed_forward_input_norm)) for x in middle]
    width = inner[0].shape[1]
    index = np.flatnonzero(units[:width])
    if len(index):
        units[index] = _unit_scales(layer, torch.from_numpy(index), inner, middle, wanted[1])
    factors = torch.from_numpy(units[:width]).to(network.device)
    outputs = [layer.units.down.added(a * factors, x) for a, x in zip(inner, middle, strict=True)]
    return [normed(y, layer.units.down.norm) for y in outputs]


def _unit_scales(
    layer: Layer, index: Tensor, inner: Sequence[Tensor], middle: Sequence[Tensor], wanted: Sequence[Tensor]
) -> np.ndarray:
    """Return argmin ‖Σ m_u·a_u·w_u − target‖² + λ‖m − 1‖², clipped to SMALLEST … LARGEST: (units,) float32.

    With activations A (tokens, units) and the down map's columns W, the normal equations' matrix is
    (AᵀA)∘(WᵀW), so nothing of the size tokens·width·units is ever made.
    """
    weight = layer.units.down.weight[:, index].double()  # (D, u)
    gram = torch.zeros(len(index), len(index), dtype=torch.float64, device=weight.device)
    moment = gram.new_zeros(len(index))
    for a, x, y in zip(inner, middle, wanted, strict=True):
        active = a[:, index].double()
        target = (y - x - layer.units.down.bias).double()
        gram += active.T @ active
        moment += ((active.T @ target) * weight.T).sum(1)
    gram *= weight.T @ weight
    ridge = ridge_of(float(gram.trace()), len(index))
    eye = torch.eye(len(index), dtype=torch.float64, device=weight.device)
    scales = torch.linalg.solve(gram + ridge * eye, moment + ridge).clamp(SMALLEST, LARGEST)
    ones = torch.ones_like(scales)
    worse = _loss(gram, moment, scales) > _loss(gram, moment, ones)  # clipping can do that
    return np.asarray((ones if worse else scales).float().numpy(force=True))


def _loss(gram: Tensor, moment: Tensor, scales: Tensor) -> float:
    return float(scales @ gram @ scales - 2 * moment @ scales)


def _after_heads(
    network: DifferentiableNetwork, number: int, streams: Sequence[Tensor], contexts: Sequence[Tensor | None]
) -> list[Tensor]:
    """Return the residual stream after the heads, before any norm, (T, D) each."""
    layer = network.network.layers[number]
    return [
        x + layer.attention_bias if c is None or layer.heads is None else layer.heads.output.added(c, x)
        for x, c in zip(streams, contexts, strict=True)
    ]
