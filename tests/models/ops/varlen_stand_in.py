"""torch's attention over packs of sequences (`varlen_attn`) for a CPU, for which torch has no kernel."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def exact_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Return what torch documents, computed in float64, one sequence after the other: (T_q, H_q, D).

    query: (T_q, H_q, D); key, value: (T_k, H_kv, D). As the kernel does, it refuses tensors of another form,
    aligns the last query with the last key, and leaves what belongs to no sequence undefined: NaN.
    """
    assert return_aux is seqused_k is block_table is num_splits is None, "not stood in for"
    assert cu_seq_k is not None
    check_form(query, key, value, (cu_seq_q, cu_seq_k), (max_q, max_k))
    heads, key_heads = query.shape[1], key.shape[1]
    if heads != key_heads and not (enable_gqa and heads % key_heads == 0):
        raise ValueError(f"{heads} heads of queries and {key_heads} of keys, enable_gqa {enable_gqa}")
    out = torch.full_like(query, torch.nan)
    borders = [offsets.tolist() for offsets in (cu_seq_q, cu_seq_k)]
    rows = [itertools.pairwise(of_one) for of_one in borders]
    for (first, end), (first_key, end_key) in zip(*rows, strict=True):
        parts = query[first:end], key[first_key:end_key], value[first_key:end_key]
        q, k, v = (part.transpose(0, 1).double() for part in parts)
        near = visible(end - first, end_key - first_key, window_size)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=near, scale=scale, enable_gqa=enable_gqa)
        out[first:end] = found.transpose(0, 1).to(out.dtype)
    return out


def visible(queries: int, keys: int, window: tuple[int, int]) -> Tensor:
    """Return which keys each query sees, (queries, keys) bool: so many to its left and right, −1 for all."""
    distance = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
    left, right = window
    return ((left < 0) | (distance >= -left)) & ((right < 0) | (distance <= right))


def check_form(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: tuple[Tensor, Tensor],
    longest: tuple[int, int],
) -> None:
    """Raise RuntimeError if FlashAttention does not take these tensors."""
    for part in (query, key, value):
        if part.ndim != 3 or part.stride(-1) != 1 or part.dtype != query.dtype or part.shape[-1] % 8:
            raise RuntimeError(f"tensor of {part.dtype}, shape {part.shape}, strides {part.stride()}")
    if key.shape != value.shape or len(offsets[0]) != len(offsets[1]):
        raise RuntimeError("keys and values, or sequences of queries and keys, are not as many")
    for tokens, of_one, most in zip((query, key), offsets, longest, strict=True):
        if of_one.dtype != torch.int32 or not of_one.is_contiguous():
            raise RuntimeError(f"offsets of {of_one.dtype}")
        lengths = of_one.diff()
        if of_one[0] != 0 or of_one[-1] > len(tokens) or lengths.min() < 1 or lengths.max() != most:
            raise RuntimeError(f"offsets {of_one.tolist()} of {len(tokens)} tokens, at most {most} each")
