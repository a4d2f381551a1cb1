"""The operators that the network is computed with, one implementation for each kind of hardware."""

from __future__ import annotations

import torch

from models.checkpoint.config import ModelConfig
from models.ops.cpu import CpuOps
from models.ops.int8 import Int8Ops
from models.ops.torch import TorchOps

__all__ = ["TorchOps", "choose"]


def choose(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> TorchOps:
    """Return the operators for a checkpoint on a device; called once, when the checkpoint is loaded."""
    ops: TorchOps
    if device.type == "cpu":
        ops = CpuOps(dtype, head_size=config.head_size)
    elif device.type == "cuda":
        from models.ops import cuda  # its kernel takes as long to import as torch itself

        ops = cuda.choose(config.head_size, device, dtype)
    else:
        ops = TorchOps(device, dtype)
    return Int8Ops(ops, hidden_size=config.hidden_size) if config.int8 else ops
