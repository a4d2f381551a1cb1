"""The operators that the network is computed with, one implementation for each kind of hardware."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch  # for annotations alone: `headroom.models.ops.torch` takes its name when it is imported
from torch import OutOfMemoryError, bfloat16, cuda, float16

from headroom.models.checkpoint.config import ModelConfig
from headroom.models.errors import first_line
from headroom.models.ops import kernel_library
from headroom.models.ops.cpu import CpuOps
from headroom.models.ops.kernels import DTYPES
from headroom.models.ops.torch import CudaOps, TorchOps
from headroom.models.ops.trial import disagreement
from headroom.models.ops.varlen import VarlenAttention

__all__ = ["TorchOps", "choose"]

HEAD_SIZES = (16, 32, 64, 128)
"""Sizes of the heads that our Triton kernel computes."""

log = logging.getLogger(__name__)


def choose(config: ModelConfig, device: torch.device, dtype: torch.dtype, parts: Sequence[str]) -> TorchOps:
    """Return the operators for a checkpoint on a device; called once, when the checkpoint is loaded.

    parts: what its network computes, of `trial.PARTS`.
    """
    if device.type == "cpu":
        return CpuOps(dtype, kernel_library.choice().kernels if dtype in DTYPES else None)
    return choose_on_gpu(config.head_size, device, dtype, parts)


def choose_on_gpu(head_size: int, device: torch.device, dtype: torch.dtype, parts: Sequence[str]) -> CudaOps:
    """Return the fastest operators that work on this GPU for heads of this size.

    parts: what they are to compute, of `trial.PARTS`.
    """
    is_half = dtype in (float16, bfloat16)
    if not is_half or cuda.get_device_capability(device) < (8, 0):
        return CudaOps(device, dtype)
    varlen: VarlenAttention | None = None
    if "causal" in parts:
        packed = _if_it_works(
            lambda: CudaOps(device, dtype, VarlenAttention.of_torch()),
            partial(disagreement, head_size=head_size, parts=("causal",)),
            "a decoder attends to one sequence after the other",
        )
        varlen = None if packed is None else packed.varlen
    if head_size not in HEAD_SIZES:
        return CudaOps(device, dtype, varlen)

    def ours() -> CudaOps:
        # Triton takes as long to import as torch, and not every build of torch comes with it.
        from headroom.models.ops.triton import TritonOps

        return TritonOps(device, dtype, varlen)

    others = [part for part in parts if part != "causal"]
    check = partial(disagreement, head_size=head_size, parts=others)
    return _if_it_works(ours, check, "our Triton kernels are not used") or CudaOps(device, dtype, varlen)


def _if_it_works(
    make: Callable[[], CudaOps], check: Callable[[CudaOps], str | None], loss: str
) -> CudaOps | None:
    """Return operators in which the check finds no problem; None with a warning of what is lost."""
    try:
        ops = make()
        problem = check(ops)
    except OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler or a driver raises
        problem = first_line(error)
    if problem is None:
        return ops
    log.warning("the GPU is not as fast as it could be: %s: %s", loss, problem[:200])
    return None
