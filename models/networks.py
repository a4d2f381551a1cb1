"""The networks by the names that the families give them, and how a checkpoint's is built.

Two are BERT with scores of distances: DeBERTa-v2's attention, and ALiBi's slopes
(`headroom.models.ops.relative`).
"""

import logging
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.families import FAMILIES
from headroom.models.checkpoint.shapes import DISTANCES, DISTANCES_NORM
from headroom.models.decoder import DecoderNetwork
from headroom.models.network import Bert, Network
from headroom.models.ops.positions import Positions
from headroom.models.ops.relative import Relative, alibi_slopes, log_buckets
from headroom.models.ops.torch import Linear, Norm, Tensors, TorchOps

log = logging.getLogger(__name__)


class Deberta(Bert):
    """DeBERTa-v2 with a classifier on the first token."""

    parts = "tables", "maps"

    def lay_out(self, tensors: Tensors) -> None:
        """Make the embeddings of distances and of tokens, layers and classifier."""
        assert self.config.distances is not None
        buckets, largest = self.config.distances
        norm = self.norm(tensors, DISTANCES_NORM)
        distances = self.table(tensors, DISTANCES).float()
        assert norm.bias is not None
        distances = Norm(norm.weight.float(), norm.bias.float(), norm.eps)(distances)
        self.distances = distances.flip(0)  # the key furthest to the left first
        order = log_buckets(buckets, largest, self.config.max_positions - 1)
        self.order = order.to(self.device)
        self.straight = buckets // 2
        super().lay_out(tensors)

    def positions(self, number: int, projection: Linear) -> Positions:  # noqa: ARG002
        """Return a layer's keys and queries of distances, made by its maps as those of tokens are."""
        weights = projection.weight.float().chunk(3)
        biases = projection.bias.float().chunk(3)
        queries, keys = map(self._table, weights[:2], biases[:2])
        return Positions(relative=Relative((keys, queries, self.order), self.straight))

    def _table(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return what a map makes of the embeddings of distances, head by head: (h, W, d)."""
        rows = F.linear(self.distances, weight, bias)  # (W, h·d)
        return rows.view(len(rows), -1, self.config.head_size).transpose(0, 1).to(self.dtype).contiguous()


class AlibiBert(Bert):
    """BERT whose heads lower their scores by distance, each by a slope of its own."""

    parts = "slopes", "maps"

    def positions(self, number: int, projection: Linear) -> Positions:  # noqa: ARG002
        """Return the slopes of the heads that a layer has."""
        kept = list(self.config.kept_heads[number])
        slopes = torch.tensor(alibi_slopes(self.config.num_heads))[kept].to(self.device)
        return Positions(relative=Relative(slopes=slopes))


NETWORKS: dict[str, type[Network]] = {
    "bert": Bert,
    "modernbert": Bert,
    "deberta": Deberta,
    "alibi": AlibiBert,
    "decoder": DecoderNetwork,
}
"""By `Family.network`."""


def build(
    config: ModelConfig,
    tensors: Tensors,
    *,
    device: torch.device,
    dtype: torch.dtype,
    deterministic: bool = False,
    ops: TorchOps | None = None,
) -> Network:
    """Return the network of a checkpoint's family.

    Only a CPU computes in int8. On a GPU, int8 weights become the floats that they stand for.
    tensors: what `headroom.models.checkpoint.tensors.read_tensors` returns. ops: default: the fastest of the
    device.
    """
    network = NETWORKS[FAMILIES[config.family].network]
    if config.int8 and device.type != "cpu":
        log.warning("an int8 checkpoint is computed in %s: only a CPU computes in int8", str(dtype)[6:])
        whole = network(config, tensors, device=torch.device("cpu"), dtype=torch.float32)
        config = replace(config, int8=False)
        tensors = whole.tensors()
    return network(config, tensors, device=device, dtype=dtype, deterministic=deterministic, ops=ops)
