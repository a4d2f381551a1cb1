"""The family `deberta-v2`, which DeBERTa-v3 is of too: what its config.json says, and its tensors' names.

He et al. 2021, https://arxiv.org/abs/2006.03654 and https://arxiv.org/abs/2111.09543. All published ones
share their maps of queries and keys with distances, in buckets that grow, and normalise the table.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.checkpoint.config import ModelConfig
from models.checkpoint.family import Family
from models.checkpoint.fields import activation, need, positive_int

_PUBLISHED = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}


def _read(raw: Mapping[str, Any], shape: ModelConfig) -> ModelConfig:
    sizes = {"pooler_hidden_size": shape.hidden_size, "attention_head_size": shape.head_size}
    for name, wanted in (_PUBLISHED | {name: size for name, size in sizes.items() if name in raw}).items():
        need(raw.get(name) == wanted, name, raw.get(name), f"only {wanted!r} is supported")
    kinds = raw.get("pos_att_type")
    named = kinds.split("|") if isinstance(kinds, str) else kinds
    is_known = isinstance(named, list) and sorted(map(str, named)) == ["c2p", "p2c"]
    need(is_known, "pos_att_type", kinds, "only c2p and p2c together are supported")
    largest = raw.get("max_relative_positions", -1)
    need(type(largest) is int, "max_relative_positions", largest, "it must be a whole number")
    largest = largest if largest > 0 else shape.max_positions
    buckets = positive_int(raw, "position_buckets")
    wanted = f"it must be from 4 to about twice the largest distance, {largest}"
    need(2 <= buckets // 2 < largest - 1, "position_buckets", buckets, wanted)
    return replace(
        shape,
        absolute_positions=bool(raw.get("position_biased_input", True)),
        head_activation=activation(raw, "pooler_hidden_act"),
        distances=(buckets, largest),
        without_bias=frozenset({"bert.embeddings_project"}),
    )


DEBERTA = Family(
    encoder="deberta.",
    names={"bert.pooler.": "pooler.", "bert.embeddings_project.": "deberta.embeddings.embed_proj."},
    in_layer={
        f"attention.self.{name}.": f"attention.self.{name}_proj." for name in ("query", "key", "value")
    },
    network="deberta",
    defaults={"layer_norm_eps": 1e-7, "embedding_size": None},
    # With a kernel, a convolution would follow the first layer, as in v2 xlarge and xxlarge.
    fixed={"position_embedding_type": "absolute", "conv_kernel_size": 0, "type_vocab_size": 0},
    token_types=None,
    reads=_read,
)
