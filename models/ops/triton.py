"""Kernels for half precision on a GPU: attention over packs, layer normalisation of a sum, and GELU.

They are written in Triton (https://triton-lang.org), which compiles them for the GPU at hand and needs a C
compiler. `headroom.models.ops.choose_on_gpu` compares them with torch's plain operators before they are used.
Attention follows Milakov & Gimelshein 2018 (https://arxiv.org/abs/1805.02867) and FlashAttention-2 (Dao
2023, https://arxiv.org/abs/2307.08691): scores never leave the chip.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headroom.models.batch import PackedBatch
from headroom.models.ops.positions import Positions, rotated
from headroom.models.ops.torch import CudaOps, Linear, MaskPolicy, Norm

SHORT = 32
"""Tokens of a sequence whose attention is computed in one step. Longer ones are computed in blocks."""

BLOCK = 64
"""Queries that are computed together in a longer sequence, and keys of each step."""

FEWEST_QUERIES = 16
"""A product on tensor cores has at least this many rows."""

NO_WINDOW = 1 << 30


@triton.jit(
    do_not_specialize=[
        "first_row",
        "heads",
        "row_stride",
        "window",
        "all_tokens",
        "rows",
        "first_near",
        "reach",
    ],
    do_not_specialize_on_alignment=["weights"],
)
def attention_kernel(
    projected,
    offsets,
    weights,
    out,
    first_row,
    heads,
    row_stride,
    window,
    scale,
    to_position,
    to_content,
    order,
    slopes,
    all_tokens,
    rows,
    first_near,
    reach,
    size: tl.constexpr,
    tile: tl.constexpr,
    block: tl.constexpr,
    limit: tl.constexpr,
    long: tl.constexpr,
    first_only: tl.constexpr,
):
    """Compute tile tokens of one head of one sequence.

    Programs: (sequences from `first_row` on · heads, blocks of queries). long: for sequences of more than
    limit tokens, else for the others, so that a sequence is computed in one way, whatever is in its pack.
    weights: float32, of the head at [row·row_stride + head], or None. scale: of the scores, times log2(e).
    to_position, to_content: of `TableScores`, (heads, all_tokens, rows) from row `first_near` on, or None.
    order: int32, of the tables, for distances up to reach. slopes: (heads,) float32, times log2(e), or None.
    """
    row = first_row + tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    start = tl.load(offsets + row).to(tl.int64)
    length = (tl.load(offsets + row + 1) - start).to(tl.int32)
    first_query = tl.program_id(1) * tile
    other = length <= limit if long else length > limit
    if (first_query >= length) | other:
        return
    width = heads * size
    columns = head * size + tl.arange(0, size)
    queries = first_query + tl.arange(0, tile)
    last = 1 if first_only else length
    tokens = projected + start * (3 * width)
    query = tl.load(
        tokens + queries[:, None] * (3 * width) + columns[None, :], mask=queries[:, None] < last, other=0.0
    )
    best = tl.full([tile], -1e30, tl.float32)  # finite: a block may hold no key that a query sees
    total = tl.zeros([tile], tl.float32)
    context = tl.zeros([tile, size], tl.float32)
    low = 0
    high = block
    if long:
        low = tl.maximum(first_query - window, 0) // block * block
        high = tl.minimum(first_query + tile + window, length)
    for first_key in range(low, high, block):
        keys = first_key + tl.arange(0, block)
        at = tokens + keys[:, None] * (3 * width) + columns[None, :]
        key = tl.load(at + width, mask=keys[:, None] < length, other=0.0)
        value = tl.load(at + 2 * width, mask=keys[:, None] < length, other=0.0)
        seen = (keys[None, :] < length) & (tl.abs(queries[:, None] - keys[None, :]) <= window)
        scores = tl.dot(query, tl.trans(key)) * scale
        distance = keys[None, :] - queries[:, None]
        if to_position is not None:
            both = seen & (queries[:, None] < length)
            near = tl.load(order + reach + distance, mask=both, other=0) - first_near
            of_head = (head.to(tl.int64) * all_tokens + start) * rows
            of_query = of_head + queries[:, None] * rows + near
            of_key = of_head + keys[None, :] * rows + near
            added = tl.load(to_position + of_query, mask=both, other=0.0).to(tl.float32)
            added += tl.load(to_content + of_key, mask=both, other=0.0).to(tl.float32)
            scores += added * scale
        if slopes is not None:
            scores -= tl.load(slopes + head) * tl.abs(distance).to(tl.float32)
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(best, tl.max(scores, 1))
        shrink = tl.exp2(best - highest)
        exponentials = tl.exp2(scores - highest[:, None])
        total = total * shrink + tl.sum(exponentials, 1)
        context = context * shrink[:, None] + tl.dot(exponentials.to(value.dtype), value)
        best = highest
    context = context / total[:, None]
    if weights is not None:
        context *= tl.load(weights + row * row_stride + head)
    if first_only:
        target = out + (row + queries[:, None]).to(tl.int64) * width
    else:
        target = out + (start + queries[:, None]) * width
    tl.store(target + columns[None, :], context.to(out.dtype.element_ty), mask=queries[:, None] < last)


@triton.jit
def norm_kernel(x, residual, weight, bias, eps, width: tl.constexpr, padded: tl.constexpr):
    """Normalise x + residual in one row, in float32, and write it over x."""
    columns = tl.arange(0, padded)
    inside = columns < width
    at = tl.program_id(0).to(tl.int64) * width + columns
    added = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    added += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, added - tl.sum(added, 0) / width, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + at, (centred * scale * factor + shift).to(x.dtype.element_ty), mask=inside)


class SumNorm(Norm):
    """Layer normalisation, of a sum too."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        super().__init__(weight, bias, eps)
        padded = triton.next_power_of_2(len(weight))
        self._padded = padded
        self._num_warps = min(8, max(1, padded // 512))

    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return the norm of x + residual in x's memory. Both: (T, D), T > 0."""
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            norm_kernel[(x.shape[0],)](
                x,
                residual.contiguous(),
                self.weight,
                self.bias,
                self.eps,
                width=len(self.weight),
                padded=self._padded,
                num_warps=self._num_warps,
            )
        return x


class SumNormLinear(Linear):
    """An affine map whose sum with a residual is normalised in one step."""

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        """Return norm(residual + the map of x), (T, out)."""
        if isinstance(norm, SumNorm):
            return norm.of_sum(self(x), residual)
        return super().add_norm(x, residual, norm)


class GeluLinear(Linear):
    """An affine map with GELU, by tanh, computed before the product is rounded."""

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the map. x: (T, in)."""
        return torch._addmm_activation(self.bias, x, self._weight.T, use_gelu=True)


class TritonOps(CudaOps):
    """One GPU, half precision: our kernels.

    Fused GELU computes tanh's form. It is used where its mean error is at most that of the activation that
    is computed after the product was rounded: in bfloat16 for both forms, in float16 for tanh's alone.
    """

    masking = MaskPolicy(gathers=True, in_graphs=True)

    def linear(self, weight: Tensor, bias: Tensor, activation: str = "none") -> Linear:
        """Lay out an affine map."""
        gelus = ("gelu", "gelu_tanh") if weight.dtype == torch.bfloat16 else ("gelu_tanh",)
        if weight.dtype != torch.float32 and activation in gelus:
            return GeluLinear(weight, bias, activation)
        return SumNormLinear(weight, bias, activation)

    def norm(self, weight: Tensor, bias: Tensor, eps: float) -> Norm:
        """Return a layer normalisation."""
        return SumNorm(weight, bias, eps)

    def attention(
        self, projected: Tensor, batch: PackedBatch, heads: int, weights: Tensor | None, positions: Positions
    ) -> Tensor:
        """Return an encoder's attention in one launch, or two where titles are long.

        What fills the pack up is undefined, NaN among it; it reaches no sequence.
        """
        if positions.rotation is not None:
            parts = projected.view(len(projected), 3, heads, -1)
            projected = rotated(parts, positions.rotation[batch.positions]).flatten(1)
        size = projected.shape[1] // (3 * heads)
        first_only = batch.read == "first"
        out = projected.new_empty(len(batch.first_token if first_only else projected), heads * size)
        row_stride = 0 if weights is None or len(weights) == 1 else weights.stride(0)
        short, long = batch.by_length(SHORT)
        seen = self._seen(projected, heads, positions, batch.longest)
        for sequences, is_long in ((short, False), (long, True)):
            if not sequences:
                continue
            block = BLOCK if is_long else SHORT
            blocks = -(-batch.longest // block) if is_long and not first_only else 1
            with torch.cuda.device_of(projected):  # type: ignore[no-untyped-call]
                attention_kernel[(len(sequences) * heads, blocks)](
                    projected,
                    batch.offsets,
                    weights,
                    out,
                    first_row=sequences.start,
                    heads=heads,
                    row_stride=row_stride,
                    **seen,
                    size=size,
                    tile=FEWEST_QUERIES if first_only else block,
                    block=block,
                    limit=SHORT,
                    long=is_long,
                    first_only=first_only,
                    num_warps=4 if is_long else 2,
                    num_stages=3 if is_long and size <= 64 else 2,  # as many as fit into any chip's memory
                )
        return out

    @staticmethod
    def _seen(projected: Tensor, heads: int, positions: Positions, longest: int) -> dict[str, Any]:
        """Return the kernel's arguments for positions in sequences of up to `longest` tokens."""
        query, key, _ = projected.view(len(projected), 3, heads, -1).permute(1, 2, 0, 3)
        relative = positions.relative
        seen: dict[str, Any] = dict.fromkeys(("to_position", "to_content", "order", "slopes"))
        seen |= dict.fromkeys(("all_tokens", "rows", "first_near", "reach"), 0)
        seen["window"] = NO_WINDOW if positions.window is None else positions.window
        seen["scale"] = math.log2(math.e) * positions.scale(query.shape[-1])
        if relative is None:
            return seen
        if relative.slopes is not None:
            seen["slopes"] = relative.slopes * math.log2(math.e)
        if relative.tables is not None:
            near = relative.near(query, key, longest)
            order = relative.tables[2]
            seen |= {
                "to_position": near.to_position,
                "to_content": near.to_content,
                "order": order,
                "all_tokens": len(projected),
                "rows": near.to_position.shape[-1],
                "first_near": near.first_row,
                "reach": len(order) // 2,
            }
        return seen
