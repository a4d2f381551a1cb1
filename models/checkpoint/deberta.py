"""The family `deberta-v2`, which DeBERTa-v3 is of too: what its config.json says, and its tensors' names.

He et al. 2021, https://arxiv.org/abs/2006.03654 and https://arxiv.org/abs/2111.09543.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from models.checkpoint.config import ModelConfig
from models.checkpoint.fields import activation, positive_int
from models.checkpoint.like_bert import LikeBert
from models.checkpoint.shapes import POSITIONS, Shapes, bert_shapes, layer_prefix
from models.errors import UnsupportedCheckpoint

DISTANCES = "bert.encoder.rel_embeddings.weight"
"""Our name of the table with two rows per unit of `Disentangled.span`."""

DISTANCES_NORM = "bert.encoder.LayerNorm"

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

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""
        if raw.get("conv_kernel_size", 0):
            raise UnsupportedCheckpoint(
                f"config.json: conv_kernel_size is {raw['conv_kernel_size']!r}: it would need a convolution "
                "after the first layer (DeBERTa-v2 xlarge and xxlarge have one); only 0 is supported"
            )
        shape = super().shape({"layer_norm_eps": 1e-7, **raw})
        hidden, types = shape.hidden_size, raw.get("type_vocab_size", 0)
        if type(types) is not int or types < 0 or types == 1:
            raise UnsupportedCheckpoint(
                f"config.json: type_vocab_size is {types!r}; it must be 0 or at least 2"
            )
        for name in ("pooler_hidden_size", "attention_head_size"):
            wanted = hidden if name == "pooler_hidden_size" else shape.head_size
            if raw.get(name, wanted) != wanted:
                raise UnsupportedCheckpoint(
                    f"config.json: {name} is {raw[name]!r}; only {wanted} is supported"
                )
        return replace(
            shape,
            embedding_size=positive_int(raw, "embedding_size", hidden),
            type_vocab_size=types,
            absolute_positions=bool(raw.get("position_biased_input", True)),
            head_activation=activation(raw, "pooler_hidden_act"),
            disentangled=_disentangled(raw, shape.max_positions),
        )

    def expected(self, config: ModelConfig) -> Shapes:
        """Return every float tensor of the network with its shape."""
        how = config.disentangled
        assert how is not None
        for name, shape in bert_shapes(config):
            after_widening = name.startswith("bert.embeddings.LayerNorm")
            yield name, (config.hidden_size,) if after_widening else shape
        if not how.attends:
            return
        yield DISTANCES, (2 * how.span, config.hidden_size)
        if how.normed:
            for part in ("weight", "bias"):
                yield f"{DISTANCES_NORM}.{part}", (config.hidden_size,)
        for number, kept in enumerate(config.kept_heads):
            for name in how.own_maps:
                width = len(kept) * config.head_size
                prefix = f"{layer_prefix(number)}attention.self.{name}"
                yield f"{prefix}.weight", (width, config.hidden_size)
                yield f"{prefix}.bias", (width,)

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
    if not isinstance(kinds, list) or not set(kinds) <= OWN_MAPS.keys():
        raise UnsupportedCheckpoint(
            f"config.json: pos_att_type is {raw['pos_att_type']!r}; supported: {' and '.join(OWN_MAPS)}"
        )
    buckets, largest = (raw.get(name, -1) for name in ("position_buckets", "max_relative_positions"))
    if type(buckets) is not int or type(largest) is not int:
        raise UnsupportedCheckpoint(
            f"config.json: position_buckets is {buckets!r} and max_relative_positions {largest!r}; both must "
            "be whole numbers"
        )
    largest = largest if largest > 0 else positions
    if buckets > 0 and not 2 <= buckets // 2 < largest - 1:
        raise UnsupportedCheckpoint(
            f"config.json: position_buckets is {buckets} and the largest distance {largest}: buckets must be "
            "from 4 to about twice that"
        )
    normed = [part.strip() for part in str(raw.get("norm_rel_ebd", "none")).lower().split("|")]
    if not set(normed) <= {"none", "layer_norm"}:
        raise UnsupportedCheckpoint(
            f"config.json: norm_rel_ebd is {raw['norm_rel_ebd']!r}; supported: layer_norm"
        )
    return Disentangled(
        kinds=tuple(kind for kind in OWN_MAPS if kind in kinds),
        attends=bool(raw.get("relative_attention", False)) and bool(kinds),
        span=buckets if buckets > 0 else largest,
        buckets=buckets,
        largest=largest,
        shared=bool(raw.get("share_att_key", False)),
        normed="layer_norm" in normed,
    )
