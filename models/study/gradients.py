"""The network with a gate on each head of each sequence: gradients of the loss, and every layer's states.

The serving network runs fused, prepacked products that autograd cannot follow. This is the same network on
plain float32 torch operators (`Network.in_plain_torch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models.batch import PackedBatch, batches_by_length, pack
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.selection import Chosen
from models.study.base import Matrix

BATCH_TOKENS = 2048
"""Autograd keeps every layer's activations of a batch: about 0.4 MB a token in a network of BERT-base's
shape."""


class DifferentiableNetwork:
    """A classifier's network in float32 plain torch, with a gate on every head of every sequence."""

    def __init__(self, classifier: Classifier) -> None:
        self.config = classifier.config
        self.network = classifier.network.in_plain_torch()
        self.device = self.network.device

    def batches(self, pairs: Sequence[EncodedPair], budget: int = BATCH_TOKENS) -> Iterator[PackedBatch]:
        """Pack the pairs into batches of at most `budget` tokens; `order` numbers them as in `pairs`."""
        for rows in batches_by_length([len(pair) for pair in pairs], budget):
            batch = pack([pairs[i] for i in rows], device=self.device, fill=False)
            yield replace(batch, order=np.asarray(rows)[batch.order])

    def logits(self, batch: PackedBatch, gates: Tensor) -> Tensor:
        """Return the logits under gates (rows of the pack, layers, heads).

        Returns (rows of the pack, labels), least relevant first.
        """
        selection = [
            Chosen(layer.heads, layer.units, gates[:, number, list(kept)])
            for number, (layer, kept) in enumerate(
                zip(self.network.layers, self.config.kept_heads, strict=True)
            )
        ]
        return self.network.logits(batch, selection)[:, list(self.config.label_order)]

    def states(self, batch: PackedBatch) -> Iterator[Tensor]:
        """Yield the residual stream of the whole model: what enters layer 0, then each layer's output, (T, D)
        each."""
        with torch.inference_mode():
            x = self.network.embed(batch)
            yield x
            yield from self.network.layer_outputs(x, batch, self.network.selector.select(None))

    def gate_gradients(
        self,
        pairs: Sequence[EncodedPair],
        grades: NDArray[np.int64],
        weights: Matrix | None = None,
        *,
        done: Callable[[int], None] = lambda _: None,
    ) -> NDArray[np.float64]:
        """Return ∂loss/∂gate of each pair: (n, layers, heads), 0 for heads that pruning removed.

        The loss is the cross-entropy of the calibrated probabilities. grades: (n,) from 0. weights: the gates
        (layers, heads) at which the gradient is taken, None for all ones. done: called with the number of
        pairs of each finished batch.
        """
        shape = (self.config.num_layers, self.config.num_heads)
        at = torch.ones(shape) if weights is None else torch.from_numpy(np.asarray(weights, np.float32))
        gradients = np.zeros((len(pairs), *shape))
        truth = torch.from_numpy(grades).to(self.device)
        for batch in self.batches(pairs):
            gates = at.to(self.device).expand(batch.rows, *shape).clone().requires_grad_(True)
            logits = self.logits(batch, gates) / self.config.temperature
            loss = F.cross_entropy(logits, truth[torch.from_numpy(batch.order)], reduction="sum")
            (gradient,) = torch.autograd.grad(loss, gates)
            gradients[batch.order] = gradient.double().numpy(force=True)
            done(batch.rows)
        return gradients
