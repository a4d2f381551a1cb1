"""The networks by the names that the families give them, and how a checkpoint's is built."""

import logging
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from models.checkpoint.config import ModelConfig
from models.checkpoint.families import FAMILIES
from models.decoder import DecoderNetwork
from models.network import Bert, ModernBert, Network
from models.ops.torch import TorchOps
from models.positions import AlibiBert, Deberta

log = logging.getLogger(__name__)

NETWORKS: dict[str, type[Network]] = {
    "bert": Bert,
    "modernbert": ModernBert,
    "deberta": Deberta,
    "alibi": AlibiBert,
    "decoder": DecoderNetwork,
}
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

    Only a CPU computes in int8. On a GPU, int8 weights become the floats that they stand for.
    tensors: what `models.checkpoint.tensors.read_tensors` returns. ops: default: the fastest of the device.
    """
    network = NETWORKS[FAMILIES[config.family].network]
    if config.int8 and device.type != "cpu":
        log.warning("an int8 checkpoint is computed in %s: only a CPU computes in int8", str(dtype)[6:])
        whole = network(config, tensors, device=torch.device("cpu"), dtype=torch.float32)
        config, tensors = replace(config, int8=False), whole.tensors()
    return network(config, tensors, device=device, dtype=dtype, deterministic=deterministic, ops=ops)
