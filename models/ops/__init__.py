"""The operators that the network is computed with, one implementation for each kind of hardware."""

from __future__ import annotations

import torch

from models.checkpoint.config import ModelConfig
from models.ops import kernel_library
from models.ops.cpu import CpuOps
from models.ops.kernels import DTYPES
from models.ops.torch import TorchOps

__all__ = ["TorchOps", "choose"]


def choose(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> TorchOps:
    """Return the operators for a checkpoint on a device; called once, when the checkpoint is loaded."""
    if device.type == "cpu":
        return CpuOps(dtype, kernel_library.best() if dtype in DTYPES else None)
    if device.type == "cuda":
        from models.ops import cuda  # its kernel takes as long to import as torch itself

        return cuda.choose(config.head_size, device, dtype)
    return TorchOps(device, dtype)
