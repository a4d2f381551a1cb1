"""Gradients of the loss with respect to gates on heads, feed-forward units and whole layers.

A head's or a unit's gate multiplies its output. A layer's gate γ makes its output x + γ·(layer(x) − x): at 0
the layer is skipped. All gates are at 1, the intact network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models.batch import PackedBatch
from models.checkpoint.tokenizer import EncodedPair
from models.selection import Chosen
from models.study.gradients import DifferentiableNetwork

Gradients32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Gradients:
    """∂loss/∂gate of each of n pairs: heads (n, layers, heads), units (n, layers, units of the widest layer),
    layers (n, layers). Parts that the checkpoint does not hold have 0."""

    heads: Gradients32
    units: Gradients32
    layers: Gradients32


def gradients(
    network: DifferentiableNetwork,
    pairs: Sequence[EncodedPair],
    grades: NDArray[np.int64],
    *,
    done: Callable[[int], None] = lambda _: None,
) -> Gradients:
    """Return the gradients of the calibrated cross-entropy.

    grades: (n,) from 0. done: called with the number of pairs of each finished batch.
    """
    config = network.config
    layers, width = config.num_layers, max(config.widths)
    found = Gradients(
        np.zeros((len(pairs), layers, config.num_heads), np.float32),
        np.zeros((len(pairs), layers, width), np.float32),
        np.zeros((len(pairs), layers), np.float32),
    )
    truth = torch.from_numpy(grades).to(network.device)
    for batch in network.batches(pairs):
        heads, units, whole = (
            torch.ones(batch.rows, *shape, device=network.device, requires_grad=True)
            for shape in ((layers, config.num_heads), (layers, width), (layers,))
        )
        logits = _logits(network, batch, heads, units, whole)[:, list(config.label_order)]
        loss = F.cross_entropy(
            logits / config.temperature, truth[torch.from_numpy(batch.order)], reduction="sum"
        )
        of_heads, of_units, of_layers = torch.autograd.grad(
            loss, (heads, units, whole), materialize_grads=True
        )
        found.heads[batch.order] = of_heads.numpy(force=True)
        found.units[batch.order] = of_units.numpy(force=True)
        found.layers[batch.order] = of_layers.numpy(force=True)
        done(batch.rows)
    return found


def _logits(
    network: DifferentiableNetwork, batch: PackedBatch, heads: Tensor, units: Tensor, whole: Tensor
) -> Tensor:
    """Return logits (rows, labels) under the gates of each row."""
    plain, config = network.network, network.config
    x = plain.embed(batch)
    for number, (layer, view) in enumerate(zip(plain.layers, plain.views(batch), strict=True)):
        chosen = Chosen(
            layer.heads,
            layer.units,
            heads[:, number, list(config.kept_heads[number])],
            unit_weights=units[:, number, : config.widths[number]],
        )
        entered = view.leaving(x)
        left = plain.layer_output(layer, x, view, chosen)
        gate = whole[view.row_leaving, number]
        x = entered + gate[:, None] * (left - entered)
    return plain.classify(plain.pool(x, batch))
