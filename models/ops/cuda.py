"""The network's operators on a GPU: torch's fused attention, or the Triton kernels (`models.ops.triton`).

Nothing here waits for the GPU: no value is read on the host, and every copy to the GPU starts in pinned
memory. So a pass can be captured as a CUDA graph (`models.graphs`).
"""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from models.ops.torch import TorchOps
from models.ops.trial import disagreement

log = logging.getLogger(__name__)

HEAD_SIZES = (16, 32, 64, 128)
"""Sizes of the heads that our Triton kernel computes."""


class CudaOps(TorchOps):
    """One GPU, any number format: torch's fused attention over padded groups of sequences."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)


def choose(head_size: int, device: torch.device, dtype: torch.dtype) -> CudaOps:
    """Return the fastest operators that work on this GPU for heads of this size."""
    is_half = dtype in (torch.float16, torch.bfloat16)
    if not is_half or head_size not in HEAD_SIZES or torch.cuda.get_device_capability(device) < (8, 0):
        return CudaOps(device, dtype)
    try:
        from models.ops.triton import TritonOps  # not every build of torch comes with Triton

        ops = TritonOps(device, dtype)
        problem = disagreement(ops, head_size)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler or a driver raises
        problem, *_ = str(error).strip().splitlines() or [type(error).__name__]
    if problem is None:
        return ops
    log.warning("the GPU is not as fast as it could be: our Triton kernels are not used: %s", problem[:200])
    return CudaOps(device, dtype)
