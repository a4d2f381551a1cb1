"""BERT that scores distances: DeBERTa-v2's attention, or ALiBi's slopes (`models.ops.relative`)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.batch import PackedBatch
from models.checkpoint.deberta import OWN_MAPS
from models.checkpoint.shapes import DISTANCES, DISTANCES_NORM, layer_prefix
from models.network import Bert
from models.ops.relative import Relative, alibi_slopes, log_buckets
from models.ops.torch import Linear, Norm, Positions, Tensors


class Deberta(Bert):
    """DeBERTa-v2 with a classifier on the first token."""

    def lay_out(self, tensors: Tensors) -> None:
        """Make the embeddings of distances and of tokens, layers and classifier."""
        how = self.config.disentangled
        assert how is not None
        self.how = how
        if how.attends:
            distances = self.table(tensors, DISTANCES).float()
            if how.normed:
                norm = self.norm(tensors, DISTANCES_NORM)
                distances = Norm(norm.weight.float(), norm.bias.float(), norm.eps)(distances)
            self.distances = distances.flip(0)  # the key furthest to the left first
            self.order = log_buckets(how.span, how.buckets, how.largest, self.config.max_positions - 1)
            self.order = self.order.to(self.device)
        super().lay_out(tensors)

    def positions(self, tensors: Tensors, number: int, projection: Linear) -> Positions:
        """Return a layer's keys and queries of distances."""
        how = self.how
        if not how.attends:
            return Positions(relative=Relative(terms=1 + len(how.kinds)))
        maps = {name: self._own_map(tensors, number, name) for name in how.own_maps}
        if how.shared:
            parts = zip(
                *(part.float().chunk(3) for part in (projection.weight, projection.bias)), strict=True
            )
            maps = dict(zip(("pos_query", "pos_key", "value"), parts, strict=True))
        tables = {kind: self._table(maps[OWN_MAPS[kind]]) for kind in how.kinds}
        straight = how.buckets // 2 if how.buckets > 0 else how.span - 1
        terms = 1 + len(how.kinds)
        return Positions(relative=Relative(tables.get("c2p"), tables.get("p2c"), self.order, straight, terms))

    def _own_map(self, tensors: Tensors, number: int, name: str) -> tuple[Tensor, Tensor]:
        """Return weight and bias of a layer's own map of distances, float32."""
        own = self.linear(tensors, f"{layer_prefix(number)}attention.self.{name}", torch.float32)
        return own.weight, own.bias

    def _table(self, maps: tuple[Tensor, Tensor]) -> Tensor:
        """Return what a map makes of the embeddings of distances, head by head: (h, W, d)."""
        rows = F.linear(self.distances, *maps)  # (W, h·d)
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
