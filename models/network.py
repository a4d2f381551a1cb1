"""Which network computes a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models.bert import Bert
from models.checkpoint.config import ModelConfig
from models.checkpoint.families import FAMILIES
from models.encoder import Encoder as Network
from models.modernbert import ModernBert
from models.ops.torch import TorchOps

__all__ = ["Network", "build"]

NETWORKS: dict[str, type[Network]] = {"bert": Bert, "modernbert": ModernBert}
"""By `Family.network`."""


def build(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    *,
    device: torch.device,
    dtype: torch.dtype,
    deterministic: bool = False,
    ops: TorchOps | None = None,
) -> Network:
    """Return the network of a checkpoint's family.

    tensors: what `models.checkpoint.tensors.read_tensors` returns. ops: default: the fastest of the device.
    """
    network = NETWORKS[FAMILIES[config.family].network]
    return network(config, tensors, device=device, dtype=dtype, deterministic=deterministic, ops=ops)
