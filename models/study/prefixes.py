"""One forward pass of a batch under many head masks: the layers that two masks share are computed once.

Masks are taken in the order of their rows, from layer 0 up, so that masks which agree in their first layers
are neighbours. Two neighbours with the same rows 0 to L − 1 share the hidden states that enter layer L: the
second one starts there. Masks that switch off one head each thus start where their head is.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.batch import PackedBatch
from models.live_heads import Live
from models.network import Network

WORTH_SLICING = 0.25
"""If at least this share of a layer's heads is off, cutting their weights out saves more than it costs."""


def logits_under(network: Network, batch: PackedBatch, masks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logits of a packed batch under each mask.

    masks: (masks, layers, heads) float32 in the numbering of the unpruned model; any finite weights.
    Returns (masks, rows, labels) float32, rows in the caller's order, labels as in the checkpoint. A
    deterministic network gives the same bits as one pass for each mask.
    """
    logits = np.empty((len(masks), batch.rows, len(network.config.labels)), np.float32)
    layers = len(network.layers)
    with torch.inference_mode():
        states = [network.embed(batch)]  # states[n] enters layer n; the last one enters the classifier
        before: NDArray[np.float32] | None = None
        for index in np.lexsort(masks.reshape(len(masks), -1).T[::-1]):
            mask = masks[index]
            start = 0 if before is None else _first_difference(before, mask)
            if start < layers:
                del states[start + 1 :]
                live = [Live(None)] * start
                live += [_live(network, number, mask[number]) for number in range(start, layers)]
                states += network.layer_outputs(
                    states[start], batch, live, start=start, first_only=True, keep=True
                )
            logits[index, batch.order] = network.classify(states[-1])[: batch.rows].numpy(force=True)
            before = mask
    return logits


def _first_difference(one: NDArray[np.float32], other: NDArray[np.float32]) -> int:
    """Return the first layer in which two masks differ; the number of layers if they are equal."""
    differs = (one != other).any(axis=1)
    return int(differs.argmax()) if differs.any() else len(differs)


def _live(network: Network, number: int, weights: NDArray[np.float32]) -> Live:
    """Return the live heads of layer `number` under one row of weights; cut out the others if that pays."""
    attention = network.layers[number].attention
    weights = weights[list(network.config.kept_heads[number])]
    live = np.flatnonzero(weights)
    if attention is None or not len(live):
        return Live(None)
    if not network.deterministic and len(live) <= (1 - WORTH_SLICING) * attention.heads:
        attention, weights = attention.cut(live.tolist()), weights[live]
    scale: Tensor | None = None
    if (weights != 1).any():
        scale = torch.from_numpy(weights[None]).to(network.device)
    return Live(attention, scale)
