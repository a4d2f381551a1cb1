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
import torch.nn.functional as F
from torch import Tensor

from models.ops.causal import Causal
from models.ops.torch import PLAIN_POSITIONS, Linear, Norm, Positions, attention_probabilities


@dataclass(frozen=True, slots=True)
class MultiHeadAttention:
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

    def only(self, heads: Sequence[int]) -> MultiHeadAttention:
        """Return a copy of some heads, at least one. heads: their positions in this module."""
        positions, read = self.positions.only(heads)
        columns, keys = head_rows(heads, self.head_size), head_rows(read, self.head_size)
        width = self.count * self.head_size
        width_of_keys = (len(self.query_key_value.bias) - width) // 2
        rows = torch.cat([columns, width + keys, width + width_of_keys + keys])
        return MultiHeadAttention(
            *(len(heads), self.head_size, self.query_key_value.rows(rows), self.output.columns(columns)),
            positions,
        )

    def probabilities(self, x: Tensor) -> Tensor:
        """Return the attention probabilities within one sequence, (n, d_model) → (h, n, n)."""
        projected = self.query_key_value(x).float().view(len(x), -1, self.head_size)
        return attention_probabilities(*self.positions.scored(projected))

    def __call__(
        self,
        queries: Tensor,
        memory: Tensor | None = None,
        *,
        causal: bool = False,
        key_lengths: Tensor | None = None,
        head_weights: Tensor | None = None,
    ) -> Tensor:
        """Attend over padded sequences, in one of three kinds.

        encoder self-attention: queries (B, n, d_model), no memory;
        decoder masked self-attention: the same with `causal`: position i sees positions ≤ i;
        encoder-decoder attention: queries (B, n, d_model); K and V come from memory (B, m, d_model).

        key_lengths: (B,) the number of keys that are not padding; head_weights: (B, h) or (h,).
        Returns (B, n, d_model).
        """
        memory = queries if memory is None else memory
        by_head = 3, self.count, self.head_size
        asked = self.query_key_value(queries).view(*queries.shape[:2], *by_head)
        read = self.query_key_value(memory).view(*memory.shape[:2], *by_head)
        query, key, value = (part.transpose(1, 2) for part in (asked[:, :, 0], read[:, :, 1], read[:, :, 2]))
        visible = queries.new_ones(queries.shape[1], memory.shape[1], dtype=torch.bool)
        if causal:
            visible = visible.tril()
        if key_lengths is not None:
            keys = torch.arange(memory.shape[1], device=queries.device)
            visible = visible & (keys < key_lengths[:, None])[:, None, None]  # (B, 1, n, m)
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)  # (B, h, n, d_head)
        if head_weights is not None:
            heads = heads * head_weights.reshape(-1, self.count, 1, 1)
        return self.output(heads.transpose(1, 2).flatten(2))


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
        """Return a copy of some units, at least one. units: their positions."""
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

    heads: MultiHeadAttention | None
    attention_bias: Tensor
    units: FeedForward
    attention_input_norm: Norm | None = None
    attention_norm: Norm | None = None
    feed_forward_input_norm: Norm | None = None
    feed_forward_norm: Norm | None = None
