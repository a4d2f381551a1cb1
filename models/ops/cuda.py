"""The network's operators on a GPU.

Passes are computed operator by operator; CUDA graphs wait until a measurement shows that they pay
(docs/decisions/012-no-cuda-graphs.md). Nothing here waits for the GPU: no value is read on the host, and
every copy to the GPU starts in pinned memory.
"""

from __future__ import annotations

import logging
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


class CudaOps(TorchOps):
    """One GPU, any number format: torch's fused attention over padded groups of sequences."""

    first_queries_alone = True

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


class VarlenOps(CudaOps):
    """One GPU on which `fits_varlen`: Flash Attention over the whole pack, without padding.

    num_splits: 1 keeps the kernel from splitting the keys of a sequence by the lengths of its neighbours,
    which changes last bits. None: as it likes, for Flash Attention 2 and torch 2.11, which take no number.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, num_splits: int | None = None) -> None:
        super().__init__(device, dtype)
        self._options: dict[str, Any] = {} if num_splits is None else {"num_splits": num_splits}

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
        rotation, window = positions.rotation, positions.window
        if positions.relative is not None:
            return super().attention(projected, batch, heads, head_weights, positions)
        parts = projected.view(projected.shape[0], 3, heads, -1)  # (T, 3, h, d)
        if rotation is not None:
            parts = rotated(parts, rotation[batch.positions])
        query, key, value = parts.unbind(1)
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
    capability = torch.cuda.get_device_capability(device)
    if fits_varlen(head_size, dtype, capability):
        for num_splits in (1, None):
            ops = VarlenOps(device, dtype, num_splits)
            problem = _problem(ops, head_size)
            if problem is None:
                return ops
        log.warning("attention is computed over padded groups, because Flash Attention %s", problem)
    return CudaOps(device, dtype)


def _problem(ops: VarlenOps, head_size: int) -> str | None:
    """Return what is wrong with the kernel on this GPU, such as a missing image; None if it works.

    It is compared with torch's plain operators: all tokens and first tokens, with and without a window.
    """
    pairs = [EncodedPair(np.zeros(length, np.int32), 1, 0, False) for length in (3, 16, 37)]
    heads, window = 2, 9
    generator = torch.Generator().manual_seed(0)
    try:
        batch = pack(pairs, device=ops.device)
        projected = torch.randn(len(batch.ids), 3 * heads * head_size, generator=generator)
        weights = torch.rand(len(pairs), heads, generator=generator).to(ops.device)
        projected = projected.to(ops.device, ops.dtype)
        plain = TorchOps(ops.device, torch.float32)
        views = (batch, int(batch.lengths.sum())), (batch.of_first_tokens(), len(pairs))
        for view, tokens in views:
            for positions in (PLAIN_POSITIONS, Positions(window=window)):
                expected, ours = (
                    one.attention(x, view, heads, weights, positions)[:tokens]
                    for one, x in ((plain, projected.float()), (ops, projected))
                )
                if not torch.allclose(ours.float(), expected, rtol=5e-2, atol=5e-2):
                    return "computes something else than torch's plain operators"
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
        return f"does not work: {reason[:200]}"
    return None
