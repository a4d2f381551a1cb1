"""Looks into the network: the states between its layers, and gradients with respect to gates on the heads and
feed-forward units of each sequence.

A gate multiplies the output of its head or unit. The serving network runs fused, prepacked products that
autograd cannot follow. This is the same network on plain float32 torch operators (`Network.in_plain_torch`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models.batch import PackedBatch, batches_by_length, pack
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.network import Network
from models.selection import Chosen

BATCH_TOKENS = 2048
"""Autograd keeps every layer's activations of a batch: about 0.4 MB a token in a network of BERT-base's
shape."""

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Gradients:
    """∂loss/∂gate of each of n pairs: heads (n, layers, heads), units (n, layers, units of the widest layer).
    Parts that the checkpoint does not hold have 0."""

    heads: Floats32
    units: Floats32


def states(
    network: Network,
    pairs: Sequence[EncodedPair],
    wanted: Sequence[NDArray[np.bool_]],
    mask: Floats32 | None = None,
) -> tuple[list[int], list[Floats32]]:
    """Return the residual stream at some tokens: what enters layer 0, then each layer's output, (tokens, D)
    each; and before them the numbers of the pairs, in the order in which their tokens follow.

    wanted: which tokens of each pair. mask: head weights (layers, heads).
    """
    parts: list[list[Floats32]] = [[] for _ in range(len(network.layers) + 1)]
    order: list[int] = []
    for rows in batches_by_length([len(pair) for pair in pairs], BATCH_TOKENS):
        batch = pack([pairs[i] for i in rows], device=network.device, fill=False)
        numbers = [rows[i] for i in batch.order]
        chosen = torch.from_numpy(np.flatnonzero(np.concatenate([wanted[i] for i in numbers])))
        with torch.inference_mode():
            x = network.embed(batch)
            outputs = network.layer_outputs(x, batch, network.selector.select(mask))
            for part, state in zip(parts, chain([x], outputs), strict=True):
                part.append(state[chosen.to(state.device)].float().numpy(force=True))
        order += numbers
    return order, [np.concatenate(part) for part in parts]


def gated_logits(network: Network, batch: PackedBatch, heads: Tensor, units: Tensor) -> Tensor:
    """Return the logits of a network in plain torch under gates.

    heads: (rows, layers, heads); units: (rows, layers, widest layer's units), rows being those of the pack.
    Returns (rows of the pack, labels), least relevant first.
    """
    config, x = network.config, network.embed(batch)
    for number, (layer, view) in enumerate(zip(network.layers, network.views(batch), strict=True)):
        of_units = units[:, number, : config.widths[number]]
        chosen = Chosen(
            layer.heads,
            layer.units,
            heads[:, number, list(config.kept_heads[number])],
            unit_weights=F.embedding(view.leaving(view.row_of_token), of_units),
        )
        x = network.layer_output(layer, x, view, chosen)
    return network.classify(network.pool(x, batch))[:, list(config.label_order)]


def gradients(
    classifier: Classifier,
    pairs: Sequence[EncodedPair],
    grades: NDArray[np.int64],
    *,
    done: Callable[[int], None] = lambda _: None,
) -> Gradients:
    """Return the gradients of the calibrated cross-entropy, at the intact network in float32.

    grades: (n,) from 0. done: called with the number of pairs of each finished batch.
    """
    config, network = classifier.config, classifier.network.in_plain_torch()
    layers, device = config.num_layers, network.device
    shapes = (layers, config.num_heads), (layers, max(config.widths))
    found = [np.zeros((len(pairs), *shape), np.float32) for shape in shapes]
    truth = torch.from_numpy(grades).to(device)
    for rows in batches_by_length([len(pair) for pair in pairs], BATCH_TOKENS):
        batch = pack([pairs[i] for i in rows], device=device, fill=False)
        order = np.asarray(rows)[batch.order]
        gates = [torch.ones(batch.rows, *shape, device=device, requires_grad=True) for shape in shapes]
        logits = gated_logits(network, batch, *gates) / config.temperature
        loss = F.cross_entropy(logits, truth[torch.from_numpy(order)], reduction="sum")
        parts = torch.autograd.grad(loss, gates, materialize_grads=True)
        for into, part in zip(found, parts, strict=True):
            into[order] = part.numpy(force=True)
        done(batch.rows)
    return Gradients(*found)
