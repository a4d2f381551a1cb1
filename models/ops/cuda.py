"""The network's operators on a GPU.

Passes are computed operator by operator; CUDA graphs wait until a measurement shows that they pay
(docs/decisions/012-no-cuda-graphs.md). Nothing here waits for the GPU: no value is read on the host, and
every copy to the GPU starts in pinned memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from models.batch import PackedBatch
from models.ops.torch import TorchOps, rotated

LARGEST_HEAD = 256
"""Flash Attention computes heads of up to this many numbers, a multiple of HEAD_MULTIPLE."""

HEAD_MULTIPLE = 8


class CudaOps(TorchOps):
    """One GPU, any number format: torch's fused attention over padded groups of sequences."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)


class VarlenOps(CudaOps):
    """One GPU on which `fits_varlen`: Flash Attention over the whole pack, without padding."""

    def attention(
        self,
        projected: Tensor,
        batch: PackedBatch,
        heads: int,
        head_weights: Tensor | None = None,
        *,
        first_only: bool = False,
        rotation: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Attend as `TorchOps.attention` does, but leave tokens of no sequence undefined."""
        parts = projected.view(projected.shape[0], 3, heads, -1)  # (T, 3, h, d)
        if rotation is not None:
            parts = rotated(parts, rotation[batch.positions])
        query, key, value = parts.unbind(1)
        longest = batch.longest
        sides = (-1, -1) if window is None else (window, window)
        context = varlen_attn(
            query, key, value, batch.offsets, batch.offsets, longest, longest, window_size=sides
        )
        assert isinstance(context, Tensor)
        if head_weights is not None:
            weights = head_weights if len(head_weights) == 1 else head_weights[batch.row_of_token]
            context.mul_(weights[..., None])
        context = context.flatten(1)
        return context[batch.first_token] if first_only else context


def fits_varlen(head_size: int, dtype: torch.dtype, capability: tuple[int, int]) -> bool:
    """Return whether torch's variable-length kernel works for this head size and compute capability.

    It is Flash Attention, which not every build of torch has.
    """
    if not torch.backends.cuda.is_flash_attention_available():
        return False
    is_half = dtype in (torch.float16, torch.bfloat16)
    return is_half and capability >= (8, 0) and head_size <= LARGEST_HEAD and head_size % HEAD_MULTIPLE == 0


def choose(head_size: int, device: torch.device, dtype: torch.dtype) -> CudaOps:
    """Return the fastest operators that this GPU has for heads of this size."""
    capability = torch.cuda.get_device_capability(device)
    return (VarlenOps if fits_varlen(head_size, dtype, capability) else CudaOps)(device, dtype)
