"""Attention of decoders: each token sees those before it, and several heads of queries share keys and values.

    head_i = softmax(q_i k_gᵀ/√d + causal)·v_g,   g = the group of head i

A sequence of a pack is a segment of tokens. It may have another one as its prefix, whose tokens all of its
own see too and whose positions come before theirs: what several sequences begin with is computed once.
(Ainslie et al. 2023, https://arxiv.org/abs/2305.13245; RMS norms: Zhang & Sennrich 2019,
https://arxiv.org/abs/1910.07467.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Causal:
    """Masked self-attention: how a decoder layer's query heads share key heads, and how both are rotated.

    borders: (groups + 1,) query heads: those from borders[g] to borders[g + 1] read key head g.
    rotation: (positions, d) float32, of `headroom.models.ops.positions.rotations`.
    query_norm, key_norm: (d,) float32, weights of RMS norms of each head before its rotation; or both None.
    """

    borders: tuple[int, ...]
    rotation: Tensor
    eps: float
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None

    relative = None
    """No scores of distances are added."""

    @property
    def groups(self) -> int:
        """Return the number of heads of keys and values."""
        return len(self.borders) - 1

    @property
    def counts(self) -> list[int]:
        """Return how many query heads read each key head."""
        return [end - first for first, end in pairwise(self.borders)]

    def only(self, heads: Sequence[int]) -> tuple[Self, list[int]]:
        """Return the attention with only some query heads, and the indices of the key heads that they read.

        heads: indices of query heads, ascending.
        """
        counts = [sum(first <= head < end for head in heads) for first, end in pairwise(self.borders)]
        read = [group for group, count in enumerate(counts) if count]
        return replace(self, borders=(0, *accumulate(counts[group] for group in read))), read

    def parts(self, projected: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, (h, n, d), keys and values, (groups, n, d), normalised and rotated.

        projected: (n, (h + 2·groups)·d), of n tokens from the position `start` on.
        """
        heads = self.borders[-1]
        size = self.rotation.shape[1]
        widths = heads, self.groups, self.groups
        by_head = projected.view(len(projected), -1, size).transpose(0, 1)
        query, key, value = by_head.split_with_sizes(widths)
        turn = self.rotation[start : start + len(projected)]
        return (
            turned(rms_normed(query, self.query_norm, self.eps), turn),
            turned(rms_normed(key, self.key_norm, self.eps), turn),
            value,
        )

    def packed_parts(self, projected: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, (T, h, d), keys and values, (T, groups, d), normalised and rotated.

        projected: (T, (h + 2·groups)·d), of tokens at these positions, (T,) int64.
        """
        heads = self.borders[-1]
        size = self.rotation.shape[1]
        by_head = projected.view(len(projected), -1, size)
        turning, value = by_head.split_with_sizes((heads + self.groups, self.groups), 1)
        turning = turning.float()
        if self.query_norm is not None:
            assert self.key_norm is not None
            weights = [self.query_norm.expand(heads, -1), self.key_norm.expand(self.groups, -1)]
            turning = F.rms_norm(turning, (size,), None, self.eps) * torch.cat(weights)
        both = turned(turning, self.rotation[positions][:, None]).to(projected.dtype)
        query, key = both.split_with_sizes((heads, self.groups), 1)
        return query, key, value

    def scored(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return queries, keys, their bias and the scale of one sequence."""
        query, key, _ = self.parts(projected)
        hidden = query.new_full((len(projected), len(projected)), -torch.inf).triu_(1)
        return query, self.grouped(key), hidden, query.shape[-1] ** -0.5

    def grouped(self, keys: Tensor, dim: int = 0) -> Tensor:
        """Return the keys (or values) of each head of queries: (h, n, d). keys: (groups, n, d).

        dim: the dimension of the heads. Nothing is copied from the host, for which a GPU would wait.
        """
        of_each = zip(keys.unbind(dim), self.counts, strict=True)
        return torch.stack([head for head, count in of_each for _ in range(count)], dim)


def rms_normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return x / √(mean(x²) + ε)·weight over the last dimension, computed in float32; x without a weight."""
    if weight is None:
        return x
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def turned(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate (…, d) by rows of `headroom.models.ops.positions.rotations`, broadcastable to (…, d)."""
    cosine, sine = rotation.chunk(2, -1)
    one, other = x.float().chunk(2, -1)
    return torch.cat([one * cosine - other * sine, other * cosine + one * sine], -1).to(x.dtype)
