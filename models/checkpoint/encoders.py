"""Families of encoders that are more than BERT by other names: what only their config.json says.

ModernBERT: Warner et al. 2024, https://arxiv.org/abs/2412.13663. Releases of transformers name some fields
differently; all forms that published checkpoints use are read.

`deberta-v2`, which DeBERTa-v3 is of too: He et al. 2021, https://arxiv.org/abs/2006.03654 and
https://arxiv.org/abs/2111.09543. All published ones share their maps of queries and keys with distances, in
buckets that grow, and normalise the table of distances.

The others bring code of their own, which is never run: our network computes the same. GTE "new" (Zhang et al.
2024, https://arxiv.org/abs/2407.19669) and JinaBERT (Günther et al. 2023, https://arxiv.org/abs/2310.19923)
are BERT with gated layers; one rotates queries and keys by their positions, the other has ALiBi's slopes.
Jina's second reranker is XLM-RoBERTa with the tensors of flash-attention's BERT.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.checkpoint.config import ModelConfig, Rope
from models.checkpoint.family import Family
from models.checkpoint.fields import activation, flag, need, positive_float, positive_int
from models.checkpoint.shapes import ATTENTION, GATES, MLP, PRE_NORMS, PROJECTIONS

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""The names of the two kinds of layers in `layer_types` and `rope_parameters`."""

THETAS = {GLOBAL: 160_000.0, LOCAL: 10_000.0}
"""The bases of the rotary angles if config.json gives none."""

_ROPE_FIELDS = {"rope_type", "rope_theta", "partial_rotary_factor"}
"""The fields of a kind in `rope_parameters`; transformers ignores the last one here."""

_BIASES = {
    "attention_bias": ATTENTION,
    "mlp_bias": MLP,
    "norm_bias": (*PRE_NORMS, "bert.embeddings.LayerNorm", "bert.final_norm", "bert.pooler.LayerNorm"),
    "classifier_bias": ("bert.pooler.dense",),
}
"""Which of our modules have biases if a field says so."""


def _in_one_map(name: str) -> dict[str, str]:
    """Return the names of queries, keys and values, and of their input's quantization, in a checkpoint that
    holds them as one map."""
    return {f"{one}.": name for one in (*PROJECTIONS, "attention.self")}


def _modernbert(raw: Mapping[str, Any], shape: ModelConfig) -> ModelConfig:
    kinds, thetas, window = _kinds(raw, shape.num_layers), _thetas(raw), _window(raw)
    pooling = raw.get("classifier_pooling", "cls")
    need(pooling in ("cls", "mean"), "classifier_pooling", pooling, "supported: 'cls', 'mean'")
    return replace(
        shape,
        head_activation=activation(raw, "classifier_activation"),
        gated=True,
        pre_norm=True,
        absolute_positions=False,
        windows=tuple(window if kind == LOCAL else None for kind in kinds),
        ropes=tuple(Rope(thetas[kind]) for kind in kinds),
        pools_mean=pooling == "mean",
        without_bias=frozenset(
            module for name, modules in _BIASES.items() if not flag(raw, name) for module in modules
        ),
    )


def _kinds(raw: Mapping[str, Any], layers: int) -> list[str]:
    """Return each layer's kind: `layer_types`, or every n-th layer global."""
    kinds = raw.get("layer_types")
    if kinds is None:
        step = positive_int(raw, "global_attn_every_n_layers", 3)
        return [LOCAL if number % step else GLOBAL for number in range(layers)]
    is_right = isinstance(kinds, list) and len(kinds) == layers and {GLOBAL, LOCAL}.issuperset(kinds)
    need(is_right, "layer_types", kinds, f"it must name {GLOBAL!r} or {LOCAL!r} for each of {layers} layers")
    return list(kinds)


def _window(raw: Mapping[str, Any]) -> int:
    """Return how many tokens to each side a token sees in a local layer."""
    if raw.get("sliding_window") is not None:  # wins over local_attention
        return positive_int(raw, "sliding_window")
    return positive_int(raw, "local_attention", 128) // 2


def _thetas(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the bases of the rotary angles: of `rope_parameters`, or of the fields of transformers 4."""
    parameters = raw.get("rope_parameters") or {}
    is_right = isinstance(parameters, Mapping) and parameters.keys() <= THETAS.keys()
    need(is_right, "rope_parameters", parameters, f"it must have one object for each of {[*THETAS]}")
    thetas: dict[str, float] = {}
    for kind, name in ((GLOBAL, "global_rope_theta"), (LOCAL, "local_rope_theta")):
        of_kind = parameters.get(kind) or {}
        plain = isinstance(of_kind, Mapping) and of_kind.get("rope_type", "default") == "default"
        plain = plain and of_kind.keys() <= _ROPE_FIELDS
        need(plain, f"rope_parameters.{kind}", of_kind, "supported: rope_type 'default' with a rope_theta")
        default = THETAS[kind]
        if kind == LOCAL and name in raw and raw[name] is None:
            default = thetas[GLOBAL]  # as transformers 4 reads null
        value = of_kind.get("rope_theta", raw.get(name))
        thetas[kind] = positive_float(default if value is None else value, name)
    return thetas


MODERNBERT = Family(
    encoder="model.",
    names={
        "bert.embeddings.word_embeddings.": "model.embeddings.tok_embeddings.",
        "bert.embeddings.LayerNorm.": "model.embeddings.norm.",
        "bert.pooler.dense.": "head.dense.",
        "bert.pooler.LayerNorm.": "head.norm.",
    },
    layer="layers.",
    in_layer={
        "attention.LayerNorm.": "attn_norm.",
        **_in_one_map("attn.Wqkv."),
        "attention.output.dense.": "attn.Wo.",
        "intermediate.LayerNorm.": "mlp_norm.",
        "intermediate.dense.": "mlp.Wi.",
        "gate.dense.": "mlp.Wi.",
        "output.dense.": "mlp.Wo.",
    },
    network="modernbert",
    fields={"layer_norm_eps": "norm_eps", "hidden_act": "hidden_activation"},
    defaults={"max_position_embeddings": 8192, "layer_norm_eps": 1e-5},
    fixed={"rope_scaling": None},  # but not position_embedding_type, in which configs hold various words
    token_types=None,
    heads_share=2,
    reads=_modernbert,
    writes=lambda config: {"layer_types": [GLOBAL if one is None else LOCAL for one in config.windows]},
    keeps_first_layer=True,
)


_PUBLISHED: dict[str, Any] = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}


def _deberta(raw: Mapping[str, Any], shape: ModelConfig) -> ModelConfig:
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
    reads=_deberta,
)


def _gated(raw: Mapping[str, Any], shape: ModelConfig) -> ModelConfig:  # noqa: ARG001
    """Return the shape with gated layers, whose gates have no bias, and without embeddings of positions."""
    return replace(shape, gated=True, without_bias=frozenset(GATES), absolute_positions=False)


def _gte(raw: Mapping[str, Any], shape: ModelConfig) -> ModelConfig:
    """Return the shape with rotary angles. With NTK scaling by f, θ becomes θ·f and angles shrink by f^(2/d)
    (https://kexue.fm/archives/9706)."""
    theta, scaling = positive_float(raw.get("rope_theta", 10_000.0), "rope_theta"), raw.get("rope_scaling")
    factor = 1.0
    if scaling is not None:
        is_ntk = isinstance(scaling, Mapping) and scaling.get("type") == "ntk" and len(scaling) == 2
        need(is_ntk, "rope_scaling", scaling, "only type 'ntk' with a factor is supported")
        factor = positive_float(scaling.get("factor"), "rope_scaling.factor")
    rope = Rope(theta * factor, factor ** (2 / shape.head_size))
    return replace(_gated(raw, shape), ropes=(rope,) * shape.num_layers)


def _jina(raw: Mapping[str, Any], shape: ModelConfig) -> ModelConfig:
    positions, kind = raw.get("position_embedding_type"), raw.get("feed_forward_type", "original")
    need(positions == "alibi", "position_embedding_type", positions, "only 'alibi' is supported")
    kinds = {"geglu": "gelu", "reglu": "relu"}
    need(kind in kinds, "feed_forward_type", kind, f"supported: {' and '.join(kinds)}")
    return replace(_gated(raw, shape), activation=kinds[kind])


GTE = Family(
    encoder="new.",
    in_layer={
        **_in_one_map("attention.qkv_proj."),
        "attention.output.dense.": "attention.o_proj.",
        "attention.output.LayerNorm.": "attn_ln.",
        "gate.dense.": "mlp.up_gate_proj.",
        "intermediate.dense.": "mlp.up_gate_proj.",
        "output.dense.": "mlp.down_proj.",
        "output.LayerNorm.": "mlp_ln.",
    },
    gate_first=True,
    fixed={
        "position_embedding_type": "rope",
        "layer_norm_type": "layer_norm",
        "pack_qkv": True,
        "logn_attention_scale": False,
        "logn_attention_clip1": False,
    },
    token_types=0,
    heads_share=2,
    reads=_gte,
    in_transformers=False,
)

JINA_BERT = Family(
    encoder="bert.",
    in_layer={
        "intermediate.dense.": "mlp.gated_layers.",
        "gate.dense.": "mlp.gated_layers.",
        "output.dense.": "mlp.wo.",
        "output.LayerNorm.": "mlp.layernorm.",
    },
    network="alibi",
    fixed={},
    token_types=0,
    reads=_jina,
    in_transformers=False,
    default_labels=1,  # as its reranker's card says
)

FLASH_ROBERTA = Family(
    encoder="roberta.",
    names={
        "bert.pooler.dense.": "classifier.dense.",
        "classifier.": "classifier.out_proj.",
        "bert.embeddings.LayerNorm.": "roberta.emb_ln.",
    },
    layer="encoder.layers.",
    in_layer={
        **_in_one_map("mixer.Wqkv."),
        "attention.output.dense.": "mixer.out_proj.",
        "attention.output.LayerNorm.": "norm1.",
        "intermediate.dense.": "mlp.fc1.",
        "output.dense.": "mlp.fc2.",
        "output.LayerNorm.": "norm2.",
    },
    fixed={"position_embedding_type": "absolute", "lora_adaptations": None},
    token_types=1,
    skips_pad=True,
    in_transformers=False,
)

OF_CONFIG = {"JinaBertConfig": "jina-bert", "XLMRobertaFlashConfig": "xlm-roberta-flash"}
"""The class of configuration that `auto_map` names → the family that computes the same."""
