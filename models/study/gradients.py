"""Looks into the network: the states between its layers, and gradients with respect to gates on the heads and
feed-forward units of each sequence.

A gate multiplies the output of its head or unit. The serving network runs fused, prepacked products that
autograd cannot follow. This is the same network on plain float32 torch operators (`Network.in_plain_torch`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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


class DifferentiableNetwork:
    """A classifier's network in float32 plain torch, with gates."""

    def __init__(self, classifier: Classifier) -> None:
        self.config = classifier.config
        self.network = classifier.network.in_plain_torch()
        self.device = self.network.device

    def batches(self, pairs: Sequence[EncodedPair], budget: int = BATCH_TOKENS) -> Iterator[PackedBatch]:
        """Pack the pairs into batches of at most `budget` tokens; `order` numbers them as in `pairs`."""
        for rows in batches_by_length([len(pair) for pair in pairs], budget):
            batch = pack([pairs[i] for i in rows], device=self.device, fill=False)
            yield replace(batch, order=np.asarray(rows)[batch.order])

    def logits(self, batch: PackedBatch, heads: Tensor, units: Tensor) -> Tensor:
        """Return the logits under gates: heads (rows, layers, heads), units (rows, layers, widest layer's
        units), rows being those of the pack.

        Returns (rows of the pack, labels), least relevant first.
        """
        plain, config = self.network, self.config
        x = plain.embed(batch)
        for number, (layer, view) in enumerate(zip(plain.layers, plain.views(batch), strict=True)):
            chosen = Chosen(
                layer.heads,
                layer.units,
                heads[:, number, list(config.kept_heads[number])],
                unit_weights=F.embedding(
                    view.leaving(view.row_of_token), units[:, number, : config.widths[number]]
                ),
            )
            x = plain.layer_output(layer, x, view, chosen)
        return plain.classify(plain.pool(x, batch))[:, list(config.label_order)]

    def gradients(
        self,
        pairs: Sequence[EncodedPair],
        grades: NDArray[np.int64],
        *,
        done: Callable[[int], None] = lambda _: None,
    ) -> Gradients:
        """Return the gradients of the calibrated cross-entropy, at the intact network.

        grades: (n,) from 0. done: called with the number of pairs of each finished batch.
        """
        config, layers = self.config, self.config.num_layers
        shapes = (layers, config.num_heads), (layers, max(config.widths))
        found = [np.zeros((len(pairs), *shape), np.float32) for shape in shapes]
        truth = torch.from_numpy(grades).to(self.device)
        for batch in self.batches(pairs):
            gates = [
                torch.ones(batch.rows, *shape, device=self.device, requires_grad=True) for shape in shapes
            ]
            logits = self.logits(batch, *gates) / config.temperature
            loss = F.cross_entropy(logits, truth[torch.from_numpy(batch.order)], reduction="sum")
            parts = torch.autograd.grad(loss, gates, materialize_grads=True)
            for into, part in zip(found, parts, strict=True):
                into[batch.order] = part.numpy(force=True)
            done(batch.rows)
        return Gradients(*found)
