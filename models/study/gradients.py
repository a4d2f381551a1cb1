"""The network once more, open for inspection: differentiable in the heads' gates, with every layer's states.

The serving encoder runs fused, prepacked products that autograd cannot follow. This one computes the same in
plain float32 torch from the encoder's own weights; the tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models.attention import attention_probabilities
from models.classifier import Classifier, batches_by_length
from models.encoder import Norm
from models.linear import Linear, activate
from models.packing import PackedBatch, pack, padded_tokens
from models.study.base import Matrix
from models.tokenizer import EncodedPair

BATCH_TOKENS = 2048
"""Autograd keeps every layer's activations of a batch: about 0.4 MB a token in a network of BERT-base's
shape."""


@dataclass(frozen=True, slots=True)
class _Affine:
    """y = act(x·Wᵀ + b) in float32."""

    weight: Tensor
    bias: Tensor
    activation: str

    @classmethod
    def of(cls, linear: Linear) -> _Affine:
        return cls(linear.weight.float(), linear.bias.float(), linear.activation)

    def __call__(self, x: Tensor) -> Tensor:
        """x: (T, in) → (T, out)."""
        return activate(F.linear(x, self.weight, self.bias), self.activation)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer: projection and output are None where pruning left no head."""

    heads: tuple[int, ...]
    projection: _Affine | None
    output: _Affine | None
    bias: Tensor
    attention_norm: Callable[[Tensor], Tensor]
    feed_forward: Callable[[Tensor], Tensor]


class OpenNetwork:
    """A classifier's network in float32 with a gate on every head of every sequence."""

    def __init__(self, classifier: Classifier) -> None:
        encoder = classifier.encoder
        self.config = classifier.config
        self.device = encoder.device
        self._temperature = classifier.config.temperature
        self._embeddings = [
            t.float()
            for t in (encoder.word_embeddings, encoder.segment_embeddings, encoder.position_embeddings)
        ]
        self._embedding_norm = _norm(encoder.embedding_norm)
        self._pooler, self._classifier = _Affine.of(encoder.pooler), _Affine.of(encoder.classifier)
        self.layers = []
        for kept, layer in zip(self.config.kept_heads, encoder.layers, strict=True):
            module = layer.attention
            self.layers.append(
                _Layer(
                    kept,
                    None if module is None else _Affine.of(module.query_key_value),
                    None if module is None else _Affine.of(module.output),
                    layer.attention_bias.float(),
                    _norm(layer.attention_norm),
                    _feed_forward(_Affine.of(layer.up), _Affine.of(layer.down), _norm(layer.norm)),
                )
            )

    def batches(self, pairs: Sequence[EncodedPair], budget: int = BATCH_TOKENS) -> Iterator[PackedBatch]:
        """The pairs packed into batches of at most `budget` tokens; `order` numbers them as in `pairs`."""
        for rows in batches_by_length([len(pair) for pair in pairs], budget):
            batch = pack([pairs[i] for i in rows], device=self.device, fill=False)
            yield replace(batch, order=np.asarray(rows)[batch.order])

    def embed(self, batch: PackedBatch) -> Tensor:
        """What enters the first layer: (T, D) float32."""
        ids = (batch.ids, batch.segments, batch.positions)
        parts = [F.embedding(index, table) for index, table in zip(ids, self._embeddings, strict=True)]
        return self._embedding_norm(parts[0] + parts[1] + parts[2])

    def contexts(self, number: int, x: Tensor, batch: PackedBatch) -> Tensor:
        """softmax(q kᵀ/√d)·v of each head that layer `number` holds, before gate and W^O. (T, D) → (T, h,
        d)."""
        layer, size = self.layers[number], self.config.head_size
        if layer.projection is None:
            return x.new_zeros(x.shape[0], 0, size)
        projected = layer.projection(x).view(-1, 3, len(layer.heads), size)
        parts = []
        for group in batch.groups:
            tokens = torch.from_numpy(padded_tokens(group.start, group.lengths, group.length)).to(x.device)
            exists = torch.arange(group.length) < torch.from_numpy(group.lengths)[:, None]
            exists = exists.to(x.device)  # (count, length)
            query, key, value = projected[tokens].permute(2, 0, 3, 1, 4)  # (count, h, length, d) each
            bias = torch.zeros(exists.shape, device=x.device).masked_fill_(~exists, -torch.inf)
            context = attention_probabilities(query, key, bias[:, None, None]) @ value
            parts.append(context.transpose(1, 2)[exists])
        return torch.cat(parts)

    def attended(self, number: int, contexts: Tensor, gates: Tensor) -> Tensor:
        """What layer `number` adds to the residual. contexts: (T, h, d); gates: (T, h) or (h,) → (T, D)."""
        layer = self.layers[number]
        if layer.output is None:
            return layer.bias.expand(contexts.shape[0], -1)
        return layer.output((contexts * gates[..., None]).flatten(1))

    def finish(self, number: int, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of layer `number` after its attention: residual, norm, feed-forward. (T, D) → (T, D)."""
        layer = self.layers[number]
        return layer.feed_forward(layer.attention_norm(x + attended))

    def logits(self, batch: PackedBatch, gates: Tensor) -> Tensor:
        """Logits under gates (rows of the pack, layers, heads): (rows of the pack, labels), least relevant
        first."""
        x = self.embed(batch)
        for number, layer in enumerate(self.layers):
            gate = gates[:, number, list(layer.heads)][batch.row_of_token]  # (T, h)
            x = self.finish(number, x, self.attended(number, self.contexts(number, x, batch), gate))
        pooled = torch.tanh(self._pooler(x[batch.first_token]))
        return self._classifier(pooled)[:, list(self.config.label_order)]

    def states(self, batch: PackedBatch) -> Iterator[Tensor]:
        """The residual stream of the whole model: what enters layer 0, then each layer's output, (T, D)
        each."""
        with torch.inference_mode():
            x = self.embed(batch)
            yield x
            for number, layer in enumerate(self.layers):
                ones = x.new_ones(len(layer.heads))
                x = self.finish(number, x, self.attended(number, self.contexts(number, x, batch), ones))
                yield x

    def gate_gradients(
        self,
        pairs: Sequence[EncodedPair],
        grades: NDArray[np.int64],
        weights: Matrix | None = None,
        *,
        done: Callable[[int], None] = lambda _: None,
    ) -> NDArray[np.float64]:
        """∂loss/∂gate of each pair: (n, layers, heads), 0 for heads that the checkpoint no longer holds.

        The loss is the cross-entropy of the calibrated probabilities. grades: (n,) from 0. weights: the gates
        where the gradient is taken, (layers, heads), None for all ones. done: told how many pairs are
        through.
        """
        shape = (self.config.num_layers, self.config.num_heads)
        at = torch.ones(shape) if weights is None else torch.from_numpy(np.asarray(weights, np.float32))
        found = np.zeros((len(pairs), *shape))
        truth = torch.from_numpy(grades).to(self.device)
        for batch in self.batches(pairs):
            gates = at.to(self.device).expand(batch.rows, *shape).clone().requires_grad_(True)
            logits = self.logits(batch, gates) / self._temperature
            loss = F.cross_entropy(logits, truth[torch.from_numpy(batch.order)], reduction="sum")
            (gradient,) = torch.autograd.grad(loss, gates)
            found[batch.order] = gradient.double().numpy(force=True)
            done(batch.rows)
        return found


def _norm(norm: Norm) -> Norm:
    return Norm(norm.weight.float(), norm.bias.float(), norm.eps)


def _feed_forward(up: _Affine, down: _Affine, norm: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def feed_forward(x: Tensor) -> Tensor:
        return norm(x + down(up(x)))

    return feed_forward
