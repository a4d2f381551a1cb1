"""BERT that scores distances: DeBERTa-v2's attention, or ALiBi's slopes (`models.ops.relative`)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.batch import PackedBatch
from models.checkpoint.shapes import DISTANCES, DISTANCES_NORM
from models.network import Bert
from models.ops.relative import Relative, alibi_slopes, log_buckets
from models.ops.torch import Linear, Norm, Positions, Tensors


class Deberta(Bert):
    """DeBERTa-v2 with a classifier on the first token."""

    def lay_out(self, tensors: Tensors) -> None:
        """Make the embeddings of distances and of tokens, layers and classifier."""
        assert self.config.distances is not None
        buckets, largest = self.config.distances
        norm, distances = self.norm(tensors, DISTANCES_NORM), self.table(tensors, DISTANCES).float()
        distances = Norm(norm.weight.float(), norm.bias.float(), norm.eps)(distances)
        self.distances = distances.flip(0)  # the key furthest to the left first
        order = log_buckets(buckets, buckets, largest, self.config.max_positions - 1)
        self.order, self.straight = order.to(self.device), buckets // 2
        super().lay_out(tensors)

    def positions(self, tensors: Tensors, number: int, projection: Linear) -> Positions:  # noqa: ARG002
        """Return a layer's keys and queries of distances, made by its maps as those of tokens are."""
        weights, biases = projection.weight.float().chunk(3), projection.bias.float().chunk(3)
        queries, keys = map(self._table, weights[:2], biases[:2])
        return Positions(relative=Relative(keys, queries, self.order, self.straight, terms=3))

    def _table(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return what a map makes of the embeddings of distances, head by head: (h, W, d)."""
        rows = F.linear(self.distances, weight, bias)  # (W, h·d)
        return rows.view(len(rows), -1, self.config.head_size).transpose(0, 1).to(self.dtype).contiguous()

    def embed(self, batch: PackedBatch) -> Tensor:
        """Return the sum of the embeddings, widened and then normalised: (T, D)."""
        x = self.embeddings(batch)
        return self.embedding_norm(x if self.widen is None else self.widen(x))


class AlibiBert(Bert):
    """BERT whose heads lower their scores by distance, each by a slope of its own."""

    def positions(self, tensors: Tensors, number: int, projection: Linear) -> Positions:  # noqa: ARG002
        """Return the slopes of the heads that a layer has."""
        kept = list(self.config.kept_heads[number])
        slopes = torch.tensor(alibi_slopes(self.config.num_heads))[kept].to(self.device)
        return Positions(relative=Relative(slopes=slopes))
