"""Attention of decoders on a GPU: all sequences of a pack in one call of FlashAttention.

torch's `varlen_attn` (Dao 2023, https://arxiv.org/abs/2307.08691) takes sequences that stand end to end, and
several heads of queries to each head of keys. It knows no prefixes: a sequence that goes on from another one
gets a copy of its keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.batch import PackedBatch
from headroom.models.ops.causal import Causal

CAUSAL = (-1, 0)
"""The window of a token: all before it, nothing after it. The last query of a sequence is at its last key."""


class VarlenAttention:
    """Causal attention of a pack in one call, without a loop over sequences.

    function: has the signature of `torch.nn.attention.varlen.varlen_attn`; if it lacks `enable_gqa`, as in
        older releases, each head of queries gets a copy of its keys.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._shares_keys = "enable_gqa" in inspect.signature(function).parameters

    @classmethod
    def of_torch(cls) -> VarlenAttention:
        """Return torch's. Raises ImportError if this release has none."""
        # It imports torch's compiler, which takes as long as torch.
        from torch.nn.attention.varlen import varlen_attn

        return cls(varlen_attn)

    def __call__(self, projected: Tensor, batch: PackedBatch, spec: Causal, weights: Tensor | None) -> Tensor:
        """Return (T, h·d), undefined for tokens of no sequence; (B or more, h·d) of last tokens alone.

        Raises RuntimeError if the function does not compute numbers or heads of this kind.
        """
        query, key, value = spec.packed_parts(projected, batch.positions)  # (T, h, d), (T, groups, d) twice
        read = batch.keys
        if read.tokens is not None:
            key = key[read.tokens]
            value = value[read.tokens]
        offsets = batch.offsets[: batch.rows + 1]
        longest = int(batch.lengths[-1])
        last_only = batch.read == "last"
        if last_only:
            query = batch.leaving(query)[: batch.rows]
            offsets = torch.arange(batch.rows + 1, dtype=torch.int32, device=query.device)
            longest = 1
        options = dict[str, bool]()
        if query.shape[1] != spec.groups:
            if self._shares_keys and len(set(spec.counts)) == 1:
                options["enable_gqa"] = True
            else:
                key = spec.grouped(key, 1)
                value = spec.grouped(value, 1)
        context: Tensor = self._function(
            query,
            key,
            value,
            offsets,
            read.offsets,
            longest,
            read.longest,
            scale=query.shape[-1] ** -0.5,
            window_size=CAUSAL,
            **options,
        )
        if weights is not None:
            if len(weights) > 1:
                weights = weights[: batch.rows] if last_only else weights[batch.row_of_token]
            context = (context * weights[..., None]).to(context.dtype)
        spare_rows = len(batch.first_token) - batch.rows if last_only else 0
        return F.pad(context.flatten(1), (0, 0, 0, spare_rows))
