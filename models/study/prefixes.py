"""One forward pass of a batch under many head masks: the layers that two masks share are computed once.

Masks are taken in the order of their rows, from layer 0 up, so that masks which agree in their first layers
are neighbours. Two neighbours with the same rows 0 to L − 1 share the hidden states that enter layer L: the
second one starts there. Masks that switch off one head each thus start where their head is.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.batch import PackedBatch
from models.network import Network
from models.selection import Chosen

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
        views = network.views(batch)
        states = [network.embed(batch)]  # states[n] enters layer n; the last one enters the classifier
        before: NDArray[np.float32] | None = None
        for index in np.lexsort(masks.reshape(len(masks), -1).T[::-1]):
            mask = masks[index]
            start = 0 if before is None else _first_difference(before, mask)
            if start < layers:
                del states[start + 1 :]
                for number in range(start, layers):
                    chosen = _chosen(network, number, mask[number])
                    entering = states[-1].clone()  # a layer may use its input's memory
                    states.append(
                        network.layer_output(network.layers[number], entering, views[number], chosen)
                    )
            pooled = network.pool(states[-1], batch)
            logits[index, batch.order] = network.classify(pooled)[: batch.rows].numpy(force=True)
            before = mask
    return logits


def _first_difference(one: NDArray[np.float32], other: NDArray[np.float32]) -> int:
    """Return the first layer in which two masks differ; the number of layers if they are equal."""
    differs = (one != other).any(axis=1)
    return int(differs.argmax()) if differs.any() else len(differs)


def _chosen(network: Network, number: int, weights: NDArray[np.float32]) -> Chosen:
    """Return what layer `number` computes under one row of weights; heads are left out if that pays."""
    layer = network.layers[number]
    heads, weights = layer.heads, weights[list(network.config.kept_heads[number])]
    on = np.flatnonzero(weights)
    if heads is None or not len(on):
        return Chosen(None, layer.units)
    if not network.deterministic and len(on) <= (1 - WORTH_SLICING) * heads.count:
        heads, weights = heads.only(on.tolist()), weights[on]
    scale: Tensor | None = None
    if (weights != 1).any():
        scale = torch.from_numpy(weights[None]).to(network.device)
    return Chosen(heads, layer.units, scale)
