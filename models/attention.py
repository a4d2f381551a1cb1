"""Multi-head attention with switchable heads, in its three kinds and packed.

    MultiHead(Q, K, V) = Concat(head_1 … head_h)·W^O
    head_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √d_head) · V W_i^V,   d_head = d_model / h

(Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, §3.2.2.) A head's weight multiplies its output
before W^O, which is the same as multiplying its attention probabilities: weight 0 removes the head,
the bias of W^O stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.linear import Linear
from models.packing import AttentionGroup, PackedBatch


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ/√d + bias)·v for each head on its own.

    query: (B, H, n, d); key, value: (B, H, m, d); bias: broadcastable to (B, H, n, m), added to the
    scores, −inf forbids. Returns (B, H, n, d).
    """
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def attend_exactly(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same without bias, as two batched products whose rounding does not depend on B.

    query, key, value: (B, H, n, d) → (B, H, n, d).
    """
    rows, heads, length, size = query.shape
    flat = (rows * heads, length, size)
    scores = torch.bmm(query.reshape(flat), key.reshape(flat).transpose(1, 2)).mul_(size**-0.5)
    return torch.bmm(torch.softmax(scores, -1), value.reshape(flat)).view(rows, heads, length, size)


def attention_probabilities(query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ/√d + bias). Shapes as in `attend`; returns (B, H, n, m), rows sum to 1."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return torch.softmax(scores if bias is None else scores + bias, -1)


@dataclass(frozen=True, slots=True)
class MultiHeadAttention:
    """The weights of h heads of width d_head on a residual stream of width d_model.

    query_key_value: d_model → 3·h·d_head, the three projections stacked; output: h·d_head → d_model.
    A pruned or sliced module has fewer heads than d_model / d_head.
    """

    heads: int
    head_size: int
    query_key_value: Linear
    output: Linear

    @classmethod
    def from_weights(
        cls,
        heads: int,
        weights: tuple[Tensor, Tensor, Tensor, Tensor],
        biases: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> MultiHeadAttention:
        """From W^Q, W^K, W^V (each (h·d_head, d_model)), W^O ((d_model, h·d_head)) and their biases."""
        return cls(
            heads,
            weights[0].shape[0] // heads,
            Linear(torch.cat(weights[:3]), torch.cat(biases[:3])),
            Linear(weights[3], biases[3]),
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
        """Attention over padded sequences, in three kinds.

        encoder self-attention: queries (B, n, d_model), no memory;
        decoder masked self-attention: the same with `causal`: position i sees positions ≤ i;
        encoder-decoder attention: queries (B, n, d_model), memory (B, m, d_model) gives K and V.

        key_lengths: (B,) keys that exist, the rest is padding; head_weights: (B, h) or (h,).
        Returns (B, n, d_model).
        """
        rows, length, width = queries.shape
        memory = queries if memory is None else memory
        query = self._split(self.query_key_value(queries.reshape(-1, width)), rows)[0]
        keyed = self._split(self.query_key_value(memory.reshape(-1, width)), rows)
        bias = _bias(length, memory.shape[1], causal, key_lengths, queries)
        heads = attend(query, keyed[1], keyed[2], bias)  # (B, H, n, d)
        if head_weights is not None:
            heads = heads * head_weights.reshape(-1, self.heads, 1, 1)
        joined = heads.transpose(1, 2).reshape(rows * length, self.heads * self.head_size)
        return self.output(joined).view(rows, length, width)

    def packed(
        self, x: Tensor, batch: PackedBatch, head_weights: Tensor | None, *, exact: bool = False
    ) -> Tensor:
        """Encoder self-attention over a packed batch, plus the residual: x + MultiHead(x).

        x: (T, d_model); head_weights: (T, h·d_head), one row per token, or (h·d_head,), each head's
        weight repeated over its width (a broadcast over 16 bfloat16s costs eight times as much), or None;
        exact: every sequence's result is the same bits in any batch (see `attend_exactly`).
        Returns (T, d_model).
        """
        projected = self.query_key_value(x)  # (T, 3·H·d)
        if x.is_cuda and not exact and x.dtype in (torch.float16, torch.bfloat16):
            heads = self._varlen(projected, batch)
        else:
            heads = self._grouped(projected, batch.groups, exact)
        joined = heads.view(x.shape[0], -1)  # (T, H·d)
        if head_weights is not None:
            joined.mul_(head_weights)
        return self.output(joined, residual=x)

    def probabilities(self, x: Tensor) -> Tensor:
        """What each head of one unpadded sequence attends to. x: (n, d_model) → (h, n, n) float32."""
        query, key, _ = self._split(self.query_key_value(x), 1)
        return attention_probabilities(query.float(), key.float())[0]

    def _split(self, projected: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """(B·n, 3·H·d) → three of (B, H, n, d)."""
        shape = (rows, projected.shape[0] // rows, 3, self.heads, self.head_size)
        query, key, value = projected.view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def _grouped(self, projected: Tensor, groups: tuple[AttentionGroup, ...], exact: bool) -> Tensor:
        """One call per group of similar lengths. (T, 3·H·d) → (T, H, d)."""
        out = projected.new_empty(projected.shape[0], self.heads, self.head_size)
        for group in groups:
            inside = out[group.start : group.stop]
            if group.gather is None or group.scatter is None:
                parts = self._split(projected[group.start : group.stop], group.count)
                result = attend_exactly(*parts) if exact else attend(*parts)
                inside.view(group.count, group.length, self.heads, self.head_size).copy_(
                    result.transpose(1, 2)
                )
            else:
                parts = self._split(projected.index_select(0, group.gather), group.count)
                result = attend(*parts, group.bias).transpose(1, 2)
                torch.index_select(
                    result.reshape(-1, self.heads, self.head_size), 0, group.scatter, out=inside
                )
        return out

    def _varlen(self, projected: Tensor, batch: PackedBatch) -> Tensor:
        """CUDA's own variable-length kernel over the whole pack. (T, 3·H·d) → (T, H, d)."""
        from torch.nn.attention.varlen import varlen_attn  # CUDA only

        query, key, value = projected.view(-1, 3, self.heads, self.head_size).unbind(1)
        longest = batch.max_length
        result = varlen_attn(query, key, value, batch.offsets, batch.offsets, longest, longest)
        assert isinstance(result, Tensor)
        return result


def _bias(queries: int, keys: int, causal: bool, key_lengths: Tensor | None, like: Tensor) -> Tensor | None:
    """−inf where a query may not look, broadcastable to (B, H, queries, keys)."""
    allowed = None
    if causal:
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=like.device).tril()[None, None]
    if key_lengths is not None:
        exists = torch.arange(keys, device=like.device) < key_lengths[:, None]  # (B, m)
        allowed = exists[:, None, None] if allowed is None else allowed & exists[:, None, None]
    if allowed is None:
        return None
    return torch.zeros(allowed.shape, dtype=like.dtype, device=like.device).masked_fill_(~allowed, -torch.inf)
