"""The network's operators on a GPU, from plain to fast: CudaOps, VarlenOps, and those of `models.ops.triton`.

Nothing here waits for the GPU: no value is read on the host, and every copy to the GPU starts in pinned
memory. So a pass can be captured as a CUDA graph (`models.graphs`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from models.batch import PackedBatch, pack
from models.checkpoint.tokenizer import EncodedPair
from models.ops.torch import PLAIN_POSITIONS, Positions, TorchOps, rotated

log = logging.getLogger(__name__)

LARGEST_HEAD = 256
"""Flash Attention computes heads of up to this many numbers, a multiple of HEAD_MULTIPLE."""

HEAD_MULTIPLE = 8

HEAD_SIZES = (16, 32, 64, 128)
"""Sizes of the heads that our Triton kernel computes."""


class CudaOps(TorchOps):
    """One GPU, any number format: torch's fused attention over padded groups of sequences."""

    first_queries_alone = True

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


class PackOps(CudaOps):
    """One GPU, half precision: a kernel that attends over the whole pack, without padding."""

    def attention(
        self,
        projected: Tensor,
        batch: PackedBatch,
        heads: int,
        head_weights: Tensor | None = None,
        positions: Positions = PLAIN_POSITIONS,
    ) -> Tensor:
        """Attend as `TorchOps.attention` does.

        What fills the pack up is undefined, NaN among it; it reaches no sequence.
        """
        if positions.relative is not None:
            return super().attention(projected, batch, heads, head_weights, positions)
        if positions.rotation is not None:
            parts = projected.view(len(projected), 3, heads, -1)
            projected = rotated(parts, positions.rotation[batch.positions]).flatten(1)
        return self._attend_pack(projected, batch, heads, head_weights, positions.window)

    def _attend_pack(
        self,
        projected: Tensor,
        batch: PackedBatch,
        heads: int,
        head_weights: Tensor | None,
        window: int | None,
    ) -> Tensor:
        """Attend as `attention` does, with no positions but a window."""
        raise NotImplementedError


class VarlenOps(PackOps):
    """One GPU on which `fits_varlen`: Flash Attention over the whole pack, without padding.

    num_splits: 1 keeps the kernel from splitting the keys of a sequence by the lengths of its neighbours,
    which changes last bits. None: as it likes, for Flash Attention 2 and torch 2.11, which take no number.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, num_splits: int | None = None) -> None:
        super().__init__(device, dtype)
        self._options: dict[str, Any] = {} if num_splits is None else {"num_splits": num_splits}

    def _attend_pack(
        self,
        projected: Tensor,
        batch: PackedBatch,
        heads: int,
        head_weights: Tensor | None,
        window: int | None,
    ) -> Tensor:
        query, key, value = projected.view(projected.shape[0], 3, heads, -1).unbind(1)  # (T, h, d) each
        keys, longest = batch.offsets, batch.longest
        queries, longest_query = keys, longest
        alone = batch.first_only and window is None  # in a window, a lone query would be taken for the last
        if alone:
            query = query[batch.first_token]
            queries, longest_query = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device), 1
        context = varlen_attn(
            *(query, key, value, queries, keys, longest_query, longest),
            window_size=(-1, -1) if window is None else (window, window),
            **self._options,
        )
        assert isinstance(context, Tensor)
        if head_weights is not None:
            weights = head_weights
            if len(weights) > 1 and alone:
                weights = F.pad(weights, (0, 0, 0, len(context) - len(weights)))
            elif len(weights) > 1:
                weights = weights[batch.row_of_token]
            context.mul_(weights[..., None])
        context = context.flatten(1)
        return context if alone else batch.leaving(context)


def fits_varlen(head_size: int, dtype: torch.dtype, capability: tuple[int, int]) -> bool:
    """Return whether torch's variable-length kernel is made for this head size and compute capability.

    It is Flash Attention, which not every build of torch has.
    """
    if not torch.backends.cuda.is_flash_attention_available():
        return False
    is_half = dtype in (torch.float16, torch.bfloat16)
    return is_half and capability >= (8, 0) and head_size <= LARGEST_HEAD and head_size % HEAD_MULTIPLE == 0


def choose(head_size: int, device: torch.device, dtype: torch.dtype) -> CudaOps:
    """Return the fastest operators that work on this GPU for heads of this size."""
    is_half = dtype in (torch.float16, torch.bfloat16)
    if is_half and head_size in HEAD_SIZES and torch.cuda.get_device_capability(device) >= (8, 0):
        ops, problem = tried(lambda: _triton_ops(device, dtype), head_size)
        if ops is not None:
            return ops
        log.warning("the GPU is not as fast as it could be: a pass with our Triton kernels %s", problem)
    if fits_varlen(head_size, dtype, torch.cuda.get_device_capability(device)):
        for num_splits in (1, None):
            ops, problem = tried(partial(VarlenOps, device, dtype, num_splits), head_size)
            if ops is not None:
                return ops
        log.warning("attention is computed over padded groups: a pass with Flash Attention %s", problem)
    return CudaOps(device, dtype)


def _triton_ops(device: torch.device, dtype: torch.dtype) -> CudaOps:
    from models.ops.triton import TritonOps  # not every build of torch comes with Triton

    return TritonOps(device, dtype)


def tried(make: Callable[[], CudaOps], head_size: int) -> tuple[CudaOps | None, str]:
    """Return operators if they work on this GPU; None, and what is wrong, such as a missing compiler.

    They are compared with torch's plain operators: attention of all tokens and of first tokens, of short and
    long sequences, with and without weights and a window, and maps as they follow attention.
    """
    try:
        ops = make()
        plain = TorchOps(ops.device, torch.float32)
        results = (_results(each, head_size, ops.dtype) for each in (ops, plain))
        for ours, expected in zip(*results, strict=True):
            if not torch.allclose(ours.float(), expected, rtol=5e-2, atol=5e-2):
                return None, "computes something else than torch's plain operators"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler or a driver raises
        reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
        return None, f"fails: {reason[:200]}"
    return ops, ""


def _results(ops: TorchOps, head_size: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield what these operators compute of the same random numbers, which are rounded to `dtype`."""
    heads = 2
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(ops.device, ops.dtype)

    batch = pack(
        [EncodedPair(np.zeros(length, np.int32), 1, 0, False) for length in (3, 16, 37, 150)],
        device=ops.device,
    )
    tokens, width = int(batch.lengths.sum()), heads * head_size
    projected = random(len(batch.ids), 3 * width)
    weights = random(batch.rows, heads).float()
    for view, leaving in ((batch, tokens), (batch.of_first_tokens(), batch.rows)):
        for some, positions in ((weights, PLAIN_POSITIONS), (weights, Positions(window=9)), (None, None)):
            yield ops.attention(projected, view, heads, some, positions or PLAIN_POSITIONS)[:leaving]
    x, weight, bias = random(tokens, width), random(width, width) / 8, random(width)
    norm = ops.norm(random(width), bias, 1e-12)
    yield ops.linear(weight, bias, norm=norm)(x, projected[:tokens, :width])
    for activation in ("gelu", "gelu_tanh"):
        yield ops.linear(weight, bias, activation)(x)
