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

from models import kernels
from models.linear import Linear
from models.packing import AttentionLayout, PackedBatch

FUSED_KEYS = 112
"""Without our own kernels: from this many keys on, scores are never written out, and torch's fused kernel
goes through them in blocks. It is 1.1 to 2.8 times as fast there, and in bfloat16 with heads of 64 slower for
fewer (benchmarks/cores.py at 3edb60d, on AMX).
"""


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ/√d + bias)·v for each head on its own.

    query: (B, H, n, d); key, value: (B, H, m, d); bias: broadcastable to (B, H, n, m), added to the
    scores, −inf forbids. Returns (B, H, n, d).
    """
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def attend_packed(projected: Tensor, layout: AttentionLayout, head_weights: Tensor | None = None) -> Tensor:
    """Self-attention of each sequence and head of a pack: softmax(q kᵀ/√d)·v, times the head's weight.

    projected: (T, 3·h·d), queries, keys and values of h heads; layout: of the pack for h heads;
    head_weights: (B, h), or (1, h) for all sequences, float32 whatever projected is.
    Returns (T, h, d). Rows of d numbers are gathered into one buffer and scattered back, which costs a third
    of what strided views cost the products.
    """
    size = projected.shape[1] // (3 * layout.heads)
    rows = projected.reshape(-1, size).index_select(0, layout.gather)
    results = rows.new_empty(layout.places, size)
    read = written = 0

    def next_rows(problems: int, width: int) -> Tensor:
        nonlocal read
        read += problems * width
        return rows[read - problems * width : read].view(problems, width, size)

    for block in layout.blocks:
        widths = (block.queries, block.keys, block.keys)
        query, key, value = (next_rows(block.problems, width) for width in widths)
        rows_of_block = results[written : written + block.problems * block.queries]
        result = rows_of_block.view(block.problems, block.queries, size)
        if layout.exact:
            core = attend_exactly
        elif block.keys < FUSED_KEYS or block.queries == 1:
            core = attend_together
        else:
            core = attend_fused
        core(query, key, value, block.absent, out=result)
        if head_weights is not None:
            weights = head_weights
            if len(weights) > 1:
                weights = weights[block.first : block.first + block.count]
            real = result[: block.count * layout.heads]
            real.view(block.count, layout.heads, -1).mul_(weights[..., None])
        written += block.problems * block.queries
    return results.index_select(0, layout.scatter).view(-1, layout.heads, size)


def attend_together(query: Tensor, key: Tensor, value: Tensor, absent: Tensor | None, out: Tensor) -> None:
    """softmax(q kᵀ/√d)·v of P problems into `out`.

    query: (P, n, d); key, value: (P, m, d); absent: indices into the P·m keys of those that do not exist;
    out: (P, n, d). Scores are kept keys × queries: absent keys are then whole rows, which are quick to fill,
    and softmax works on many queries at a time.
    """
    scores = torch.baddbmm(query.new_zeros(1), key, query.mT, beta=0, alpha=query.shape[-1] ** -0.5)
    if absent is not None:
        scores.view(-1, query.shape[1]).index_fill_(0, absent, -torch.inf)
    torch.bmm(torch.softmax(scores, 1).mT, value, out=out)


def attend_fused(query: Tensor, key: Tensor, value: Tensor, absent: Tensor | None, out: Tensor) -> None:
    """The same without a buffer of scores. Shapes as in `attend_together`."""
    bias = None
    if absent is not None:
        bias = key.new_zeros(key.shape[0] * key.shape[1]).index_fill_(0, absent, -torch.inf)
        bias = bias.view(key.shape[0], 1, 1, key.shape[1])
    out.copy_(attend(query[:, None], key[:, None], value[:, None], bias)[:, 0])


def attend_exactly(query: Tensor, key: Tensor, value: Tensor, absent: Tensor | None, out: Tensor) -> None:
    """The same where no key is absent, with rounding that does not depend on P."""
    assert absent is None
    scores = torch.bmm(query, key.mT).mul_(query.shape[-1] ** -0.5)
    torch.bmm(torch.softmax(scores, -1), value, out=out)


def has_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a kernel for sequences of many lengths at once (Flash Attention) computes attention there."""
    return device.type == "cuda" and dtype in (torch.float16, torch.bfloat16)


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

    def joined(
        self,
        x: Tensor,
        batch: PackedBatch,
        head_weights: Tensor | None = None,
        *,
        first_only: bool = False,
    ) -> Tensor:
        """Concat(head_1 … head_h) of encoder self-attention over a packed batch, what W^O is then applied to.

        x: (T, d_model); head_weights: (B, h), or (1, h) for all sequences, float32, or None.
        Of an exact batch, every sequence's result is the same bits in any other.
        Returns (T, h·d_head), or with `first_only` (B, h·d_head) for each sequence's first token.
        """
        projected = self.query_key_value(x)  # (T, 3·H·d)
        ours = kernels.usable(projected, self.head_size)
        if ours is not None:
            return ours.attention(projected, batch.offsets, self.heads, head_weights, first_only=first_only)
        if not batch.exact and has_varlen(x.device, x.dtype):
            heads = self._varlen(projected, batch)
            if head_weights is not None:
                weights = head_weights if len(head_weights) == 1 else head_weights[batch.row_of_token]
                heads.mul_(weights[..., None])
        else:
            heads = attend_packed(projected, batch.layout(self.heads), head_weights)
        joined = heads.view(x.shape[0], -1)
        return joined[batch.first_token] if first_only else joined

    def probabilities(self, x: Tensor) -> Tensor:
        """What each head of one unpadded sequence attends to. x: (n, d_model) → (h, n, n) float32."""
        query, key, _ = self._split(self.query_key_value(x), 1)
        return attention_probabilities(query.float(), key.float())[0]

    def _split(self, projected: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """(B·n, 3·H·d) → three of (B, H, n, d)."""
        shape = (rows, projected.shape[0] // rows, 3, self.heads, self.head_size)
        query, key, value = projected.view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def _varlen(self, projected: Tensor, batch: PackedBatch) -> Tensor:
        """CUDA's own variable-length kernel over the whole pack. (T, 3·H·d) → (T, H, d)."""
        from torch.nn.attention.varlen import varlen_attn  # takes as long to import as torch itself

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
