"""The family `deberta-v2`, which DeBERTa-v3 is of too: what its config.json says, and its tensors' names.

He et al. 2021, https://arxiv.org/abs/2006.03654 and https://arxiv.org/abs/2111.09543.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from models.checkpoint.config import ModelConfig
from models.checkpoint.family import Expected, LikeBert
from models.checkpoint.fields import activation, need, positive_int
from models.checkpoint.shapes import POSITIONS, deberta_shapes

OWN_MAPS = {"c2p": "pos_key", "p2c": "pos_query"}
"""The maps in `attention.self` of a layer that makes keys and queries of distances by maps of their own."""

_NAMES = {"bert.pooler.": "pooler.", "bert.embeddings_project.": "deberta.embeddings.embed_proj."}
_IN_LAYER = {
    f"attention.self.{name}.": f"attention.self.{name}_proj."
    for name in ("query", "key", "value", *OWN_MAPS.values())
}


@dataclass(frozen=True, slots=True)
class Disentangled:
    """How attention scores distances.

    kinds: "c2p" (a query's content with a distance) and "p2c" (a key's), or one of them, or none.
    attends: False without embeddings of distances; the number of kinds divides the scores all the same.
    span: the table has 2·span rows. buckets, largest: as `models.ops.relative.log_buckets` takes them.
    shared: the layer's own maps of queries and keys serve distances too. normed: the table is normalised.
    """

    kinds: tuple[str, ...]
    attends: bool
    span: int
    buckets: int
    largest: int
    shared: bool
    normed: bool

    @property
    def own_maps(self) -> list[str]:
        """Return the names of the layers' own maps of distances."""
        return [] if self.shared or not self.attends else [OWN_MAPS[kind] for kind in self.kinds]


@dataclass(frozen=True, kw_only=True)
class DebertaFamily(LikeBert):
    """The family DeBERTa-v2, as the rest of the program sees it."""

    encoder: str = "deberta."
    names: Mapping[str, str] = field(default_factory=lambda: _NAMES)
    in_layer: Mapping[str, str] = field(default_factory=lambda: _IN_LAYER)
    token_types: int = 0
    network: str = "deberta"
    expected: Expected = deberta_shapes

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""
        convolution = raw.get("conv_kernel_size", 0)
        wanted = (
            "only 0 is supported: a convolution would follow the first layer, as in v2 xlarge and xxlarge"
        )
        need(not convolution, "conv_kernel_size", convolution, wanted)
        shape = super().shape({"layer_norm_eps": 1e-7, **raw})
        hidden, types = shape.hidden_size, raw.get("type_vocab_size", 0)
        is_right = type(types) is int and types >= 0 and types != 1
        need(is_right, "type_vocab_size", types, "it must be 0 or at least 2")
        for name, size in (("pooler_hidden_size", hidden), ("attention_head_size", shape.head_size)):
            need(raw.get(name, size) == size, name, raw.get(name), f"only {size} is supported")
        return replace(
            shape,
            embedding_size=positive_int(raw, "embedding_size", hidden),
            type_vocab_size=types,
            absolute_positions=bool(raw.get("position_biased_input", True)),
            head_activation=activation(raw, "pooler_hidden_act"),
            disentangled=_disentangled(raw, shape.max_positions),
        )

    def _full_name(self, name: str) -> str:
        if name.startswith("pooler."):
            return name
        bare = name.startswith(("encoder.rel_embeddings.", "encoder.LayerNorm."))
        return super()._full_name(self.encoder + name if bare else name)

    def _is_of_encoder(self, name: str) -> bool:
        """Leave out the table of positions too that some checkpoints hold and no network of theirs reads."""
        return super()._is_of_encoder(name) and name != self.their_name(POSITIONS)


def _disentangled(raw: Mapping[str, Any], positions: int) -> Disentangled:
    kinds = raw.get("pos_att_type") or []
    kinds = [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else kinds
    is_known = isinstance(kinds, list) and set(kinds) <= OWN_MAPS.keys()
    need(is_known, "pos_att_type", raw.get("pos_att_type"), f"supported: {' and '.join(OWN_MAPS)}")
    buckets, largest = (raw.get(name, -1) for name in ("position_buckets", "max_relative_positions"))
    for name, value in (("position_buckets", buckets), ("max_relative_positions", largest)):
        need(type(value) is int, name, value, "it must be a whole number")
    largest = largest if largest > 0 else positions
    fits = buckets <= 0 or 2 <= buckets // 2 < largest - 1
    wanted = f"it must be from 4 to about twice the largest distance, {largest}"
    need(fits, "position_buckets", buckets, wanted)
    normed = [part.strip() for part in str(raw.get("norm_rel_ebd", "none")).lower().split("|")]
    is_known = set(normed) <= {"none", "layer_norm"}
    need(is_known, "norm_rel_ebd", raw.get("norm_rel_ebd"), "supported: layer_norm")
    return Disentangled(
        kinds=tuple(kind for kind in OWN_MAPS if kind in kinds),
        attends=bool(raw.get("relative_attention", False)) and bool(kinds),
        span=buckets if buckets > 0 else largest,
        buckets=buckets,
        largest=largest,
        shared=bool(raw.get("share_att_key", False)),
        normed="layer_norm" in normed,
    )
