"""The parts of a layer: attention heads, feed-forward units, and the norms around them.

    MultiHead(Q, K, V) = Concat(head_1 … head_h)·W^O
    head_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √d_head) · V W_i^V,   d_head = d_model / h

(Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, §3.2.2.) A head's weight multiplies its output before
W^O, which equals multiplying its attention probabilities: weight 0 removes the head, the bias of W^O stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headroom.models.ops.causal import Causal
from headroom.models.ops.positions import PLAIN_POSITIONS, Positions
from headroom.models.ops.torch import Linear, Norm, attention_probabilities


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """The weights of h heads of width d_head: all heads of a layer, or some.

    query_key_value: W^Q, W^K and W^V as one map, d_model → 3·h·d_head; output: W^O, h·d_head → d_model.
    positions: how attention over packs sees positions. With `Causal`, several heads share keys and values.
    """

    count: int
    head_size: int
    query_key_value: Linear
    output: Linear
    positions: Positions | Causal = PLAIN_POSITIONS

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weights."""
        tables = self.positions.relative
        return self.query_key_value.nbytes + self.output.nbytes + (0 if tables is None else tables.nbytes)

    def only(self, heads: Sequence[int]) -> AttentionHeads:
        """Return a copy of some heads, at least one. heads: their indices in this module."""
        positions, read = self.positions.only(heads)
        columns = head_rows(heads, self.head_size)
        keys = head_rows(read, self.head_size)
        width = self.count * self.head_size
        width_of_keys = (len(self.query_key_value.bias) - width) // 2
        rows = torch.cat([columns, width + keys, width + width_of_keys + keys])
        return AttentionHeads(
            count=len(heads),
            head_size=self.head_size,
            query_key_value=self.query_key_value.rows(rows),
            output=self.output.columns(columns),
            positions=positions,
        )

    def probabilities(self, x: Tensor) -> Tensor:
        """Return the attention probabilities within one sequence, (n, d_model) → (h, n, n)."""
        projected = self.query_key_value(x).float().view(len(x), -1, self.head_size)
        return attention_probabilities(*self.positions.scored(projected))


def head_rows(heads: Sequence[int], head_size: int) -> Tensor:
    """Return the heads' rows in W^Q, W^K, W^V (columns in W^O), (len(heads)·head_size,) int64."""
    return (torch.tensor(heads, dtype=torch.int64)[:, None] * head_size + torch.arange(head_size)).flatten()


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Units of a layer, all or some: up (with the activation), gate if there is one, and down."""

    up: Linear
    down: Linear
    gate: Linear | None = None

    @property
    def count(self) -> int:
        """Return the number of units."""
        return len(self.up.bias)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weights."""
        return self.up.nbytes + self.down.nbytes + (0 if self.gate is None else self.gate.nbytes)

    def only(self, units: Sequence[int]) -> FeedForward:
        """Return a copy of some units, at least one. units: their indices."""
        index = torch.tensor(units, dtype=torch.int64, device=self.up.bias.device)
        gate = None if self.gate is None else self.gate.rows(index)
        return FeedForward(self.up.rows(index), self.down.columns(index), gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One transformer layer.

    Norms are those of the residual stream after each half (BERT), or of what each half reads of the stream
    (ModernBERT, `…_input_norm`); None if there is none.

    heads: None if pruning left no head. attention_bias: of W^O, which stays if no head is computed.
    """

    heads: AttentionHeads | None
    attention_bias: Tensor
    units: FeedForward
    attention_input_norm: Norm | None = None
    attention_norm: Norm | None = None
    feed_forward_input_norm: Norm | None = None
    feed_forward_norm: Norm | None = None
