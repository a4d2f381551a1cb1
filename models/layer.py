"""The parts of a layer: attention heads, feed-forward units, and the norms around them.

Multi-head attention as in its equations, over padded sequences, in three kinds:

    MultiHead(Q, K, V) = Concat(head_1 … head_h)·W^O
    head_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √d_head) · V W_i^V,   d_head = d_model / h

(Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, §3.2.2.) A head's weight multiplies its output before
W^O, which equals multiplying its attention probabilities: weight 0 removes the head, the bias of W^O stays.
The network computes the same over packed sequences (`models.network`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.ops.torch import PLAIN_POSITIONS, Linear, Norm, Positions


@dataclass(frozen=True, slots=True)
class MultiHeadAttention:
    """The weights of h heads of width d_head: all heads of a layer, or some.

    query_key_value: W^Q, W^K and W^V as one map, d_model → 3·h·d_head; output: W^O, h·d_head → d_model.
    positions: how the network's attention over packs sees positions.
    """

    count: int
    head_size: int
    query_key_value: Linear
    output: Linear
    positions: Positions = PLAIN_POSITIONS

    @classmethod
    def from_weights(
        cls,
        count: int,
        weights: tuple[Tensor, Tensor, Tensor, Tensor],
        biases: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> MultiHeadAttention:
        """Build it from W^Q, W^K, W^V, each (h·d_head, d_model), W^O (d_model, h·d_head) and their biases."""
        return cls(
            count,
            weights[0].shape[0] // count,
            Linear(torch.cat(weights[:3]), torch.cat(biases[:3])),
            Linear(weights[3], biases[3]),
        )

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weights."""
        tables = self.positions.relative
        return self.query_key_value.nbytes + self.output.nbytes + (0 if tables is None else tables.nbytes)

    def only(self, heads: Sequence[int]) -> MultiHeadAttention:
        """Return a copy of some heads, at least one. heads: their positions in this module."""
        columns = head_rows(heads, self.head_size)
        width = self.count * self.head_size
        rows = torch.cat([columns + part * width for part in range(3)])
        return MultiHeadAttention(
            *(len(heads), self.head_size, self.query_key_value.rows(rows), self.output.columns(columns)),
            self.positions.only(heads),
        )

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
        rows, length, width = queries.shape
        memory = queries if memory is None else memory
        query = self._split(self.query_key_value(queries.reshape(-1, width)), rows)[0]
        _, key, value = self._split(self.query_key_value(memory.reshape(-1, width)), rows)
        bias = _bias(length, memory.shape[1], causal, key_lengths, queries)
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)  # (B, h, n, d)
        if head_weights is not None:
            heads = heads * head_weights.reshape(-1, self.count, 1, 1)
        joined = heads.transpose(1, 2).reshape(rows * length, self.count * self.head_size)
        return self.output(joined).view(rows, length, width)

    def _split(self, projected: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Split (B·n, 3·h·d) into three of (B, h, n, d)."""
        shape = (rows, projected.shape[0] // rows, 3, self.count, self.head_size)
        query, key, value = projected.view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value


def head_rows(heads: Sequence[int], head_size: int) -> Tensor:
    """Return the heads' rows in W^Q, W^K, W^V (columns in W^O), (len(heads)·head_size,) int64."""
    return (torch.tensor(heads, dtype=torch.int64)[:, None] * head_size + torch.arange(head_size)).flatten()


def _bias(queries: int, keys: int, causal: bool, key_lengths: Tensor | None, like: Tensor) -> Tensor | None:
    """Return −inf at each position that a query may not see, broadcastable to (B, h, queries, keys)."""
    allowed = None
    if causal:
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=like.device).tril()[None, None]
    if key_lengths is not None:
        exists = torch.arange(keys, device=like.device) < key_lengths[:, None]  # (B, m)
        allowed = exists[:, None, None] if allowed is None else allowed & exists[:, None, None]
    if allowed is None:
        return None
    return torch.zeros(allowed.shape, dtype=like.dtype, device=like.device).masked_fill_(~allowed, -torch.inf)


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

    Norms are those of the residual stream after each half (BERT: `heads.output.norm`, `units.down.norm`), or
    of what each half reads of the stream (ModernBERT); None where there is none.

    heads: None if pruning left no head. attention_bias, attention_norm: of W^O, if no head is computed.
    """

    heads: MultiHeadAttention | None
    attention_bias: Tensor
    units: FeedForward
    attention_input_norm: Norm | None = None
    attention_norm: Norm | None = None
    feed_forward_input_norm: Norm | None = None
