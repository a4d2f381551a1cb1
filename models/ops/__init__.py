"""The operators that the network is computed with, one implementation for each kind of hardware."""

from __future__ import annotations

import logging

import torch  # for annotations alone: `headroom.models.ops.torch` takes its name when it is imported
from torch import OutOfMemoryError, bfloat16, cuda, float16

from headroom.models.checkpoint.config import ModelConfig
from headroom.models.errors import first_line
from headroom.models.ops import kernel_library
from headroom.models.ops.cpu import CpuOps
from headroom.models.ops.kernels import DTYPES
from headroom.models.ops.torch import CudaOps, TorchOps
from headroom.models.ops.trial import disagreement

__all__ = ["TorchOps", "choose"]

HEAD_SIZES = (16, 32, 64, 128)
"""Sizes of the heads that our Triton kernel computes."""

log = logging.getLogger(__name__)


def choose(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> TorchOps:
    """Return the operators for a checkpoint on a device; called once, when the checkpoint is loaded."""
    if device.type == "cpu":
        return CpuOps(dtype, kernel_library.choice().kernels if dtype in DTYPES else None)
    return choose_on_gpu(config.head_size, device, dtype)


def choose_on_gpu(head_size: int, device: torch.device, dtype: torch.dtype) -> CudaOps:
    """Return the fastest operators that work on this GPU for heads of this size."""
    is_half = dtype in (float16, bfloat16)
    if not is_half or head_size not in HEAD_SIZES or cuda.get_device_capability(device) < (8, 0):
        return CudaOps(device, dtype)
    try:
        # Triton takes as long to import as torch, and not every build of torch comes with it.
        from headroom.models.ops.triton import TritonOps

        ops = TritonOps(device, dtype)
        problem = disagreement(ops, head_size)
    except OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler or a driver raises
        problem = first_line(error)
    if problem is None:
        return ops
    log.warning("the GPU is not as fast as it could be: our Triton kernels are not used: %s", problem[:200])
    return CudaOps(device, dtype)
