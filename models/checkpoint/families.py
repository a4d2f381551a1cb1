"""The model families: what each one's checkpoints are, in the terms of a network of ours.

BERT's names are the canonical ones inside. A checkpoint of another family is translated when it is read, and
back when it is written; what is between knows nothing of families. Other families are refused by name.
"""

import logging
import re
from dataclasses import replace

from headroom.models.checkpoint.decoder import decoders, read_rope
from headroom.models.checkpoint.family import Family
from headroom.models.checkpoint.fields import Fields, activation, choice, need, positive_float, positive_int
from headroom.models.checkpoint.model_config import ModelConfig, Rope
from headroom.models.checkpoint.shapes import PRE_NORMS
from headroom.models.checkpoint.tensor_names import ATTENTION, GATES, MLP, PROJECTIONS
from headroom.models.errors import UnsupportedCheckpoint
from headroom.models.files import Json

logger = logging.getLogger("headroom.models")

_DENSE_HEAD = {"bert.pooler.dense.": "classifier.dense.", "classifier.": "classifier.out_proj."}
_ROBERTA = Family(encoder="roberta.", names=_DENSE_HEAD, token_types=1, skips_pad=True)

OF_CONFIG = {"JinaBertConfig": "jina-bert", "XLMRobertaFlashConfig": "xlm-roberta-flash"}
"""The class of configuration that `auto_map` names → the family that computes the same."""

_GATED: Json = {"gated": True, "without_bias": frozenset(GATES), "absolute_positions": False}

_GLOBAL = "full_attention"
_LOCAL = "sliding_attention"
"""ModernBERT's names of the two kinds of layers, in `layer_types` and `rope_parameters`."""

_BIASES = {
    "attention_bias": ATTENTION,
    "mlp_bias": MLP,
    "norm_bias": (*PRE_NORMS, "bert.embeddings.LayerNorm", "bert.final_norm", "bert.pooler.LayerNorm"),
    "classifier_bias": ("bert.pooler.dense",),
}
"""Which of our modules have biases if a field of ModernBERT's says so."""


def _in_one_map(name: str) -> dict[str, str]:
    """Return the names of queries, keys and values, and of their input's quantization, in one map."""
    return {f"{one}.": name for one in (*PROJECTIONS, "attention.self")}


def _modernbert(raw: Fields, shape: ModelConfig) -> ModelConfig:
    kinds = raw.get("layer_types")
    pooling = choice(raw, "classifier_pooling", ("cls", "mean"), "cls")
    if kinds is None:
        kinds = _regular_kinds(positive_int(raw, "global_attn_every_n_layers", 3), shape.num_layers)
    wanted = f"it must name the kind of each of {shape.num_layers} layers"
    need(len(kinds) == shape.num_layers, "layer_types", kinds, wanted)
    window = positive_int(raw, "local_attention", 128) // 2
    ropes = _modernbert_ropes(raw)
    if raw.get("sliding_window") is not None:  # wins over local_attention
        window = positive_int(raw, "sliding_window")
    return replace(
        shape,
        head_activation=activation(raw, "classifier_activation"),
        gated=True,
        pre_norm=True,
        absolute_positions=False,
        windows=tuple(window if kind == _LOCAL else None for kind in kinds),
        ropes=tuple(ropes[kind] for kind in kinds),
        pools_mean=pooling == "mean",
        without_bias=frozenset(
            module for name, modules in _BIASES.items() if not raw.get(name) for module in modules
        ),
    )


def _regular_kinds(period: int, layers: int) -> list[str]:
    """Return the kinds of layers of which each `period`-th sees all tokens."""
    return [_LOCAL if number % period else _GLOBAL for number in range(layers)]


def _modernbert_fields(config: ModelConfig) -> Json:
    """Return the fields that say what each layer sees: for transformers 5, and for programs that know regular
    patterns only."""
    kinds = [_GLOBAL if window is None else _LOCAL for window in config.windows]
    for period in range(1, len(kinds) + 1):
        if kinds == _regular_kinds(period, len(kinds)):
            return {"layer_types": kinds, "global_attn_every_n_layers": period}
    logger.warning(
        "the layers that see all tokens do not follow each other regularly any more: transformers 5 reads "
        "layer_types and computes this network, but transformers 4 and others that read "
        "global_attn_every_n_layers compute another one"
    )
    return {"layer_types": kinds}


def _modernbert_ropes(raw: Fields) -> dict[str, Rope]:
    """Return the rotary angles of each kind: of `rope_parameters`, or of the fields of transformers 4."""
    parameters = raw.get("rope_parameters") or {}
    wanted = f"it must have one object for {_GLOBAL!r} and one for {_LOCAL!r}"
    need(parameters.keys() <= {_GLOBAL, _LOCAL}, "rope_parameters", parameters, wanted)
    ropes: dict[str, Rope] = {}
    for kind, name, default in (
        (_GLOBAL, "global_rope_theta", 160_000.0),
        (_LOCAL, "local_rope_theta", 10_000.0),
    ):
        of_kind = parameters.get(kind) or {}
        is_plain = of_kind.get("rope_type", "default") == "default"
        is_plain = is_plain and of_kind.keys() <= {"rope_type", "rope_theta", "partial_rotary_factor"}
        wanted = "supported: rope_type 'default' with a rope_theta"
        need(is_plain, f"rope_parameters.{kind}", of_kind, wanted)
        value = of_kind.get("rope_theta", raw.get(name, default))
        if value is None:  # as transformers 4 reads null
            value = default if kind == _GLOBAL else ropes[_GLOBAL].theta
        ropes[kind] = Rope(positive_float(value, name))
    return ropes


def _deberta(raw: Fields, shape: ModelConfig) -> ModelConfig:
    choice(raw, "relative_attention", [True])
    choice(raw, "share_att_key", [True])
    choice(raw, "norm_rel_ebd", ["layer_norm"])
    kinds = raw.get("pos_att_type")
    named = kinds.split("|") if isinstance(kinds, str) else kinds or ()
    need(sorted(named) == ["c2p", "p2c"], "pos_att_type", kinds, "only c2p and p2c together are supported")
    buckets = positive_int(raw, "position_buckets")
    need(buckets > 1, "position_buckets", buckets, "it must be at least 2")
    largest = shape.max_positions
    if raw.get("max_relative_positions", -1) > 0:
        largest = positive_int(raw, "max_relative_positions")
    # Each distance up to half of the buckets has one; the formula of the others needs a distance beyond.
    is_right = largest - 1 > buckets // 2 or shape.max_positions - 1 <= buckets // 2
    wanted = f"with {buckets} position_buckets it must be at least {buckets // 2 + 2}"
    need(is_right, "max_relative_positions", largest, wanted)
    return replace(
        shape,
        absolute_positions=bool(raw.get("position_biased_input", True)),
        head_activation=activation(raw, "pooler_hidden_act"),
        distances=(buckets, largest),
        without_bias=frozenset({"bert.embeddings_project"}),
    )


def _gte(raw: Fields, shape: ModelConfig) -> ModelConfig:
    rope = read_rope(raw, shape.head_size, shape.max_positions, ("ntk",))
    return replace(shape, **_GATED, ropes=(rope,) * shape.num_layers)


def _jina(raw: Fields, shape: ModelConfig) -> ModelConfig:
    choice(raw, "position_embedding_type", ["alibi"])
    kinds = {"geglu": "gelu", "reglu": "relu"}
    kind = choice(raw, "feed_forward_type", kinds, "original")
    return replace(shape, **_GATED, activation=kinds[kind])


FAMILIES: dict[str, Family] = {
    # Devlin et al. 2019. [CLS] q [SEP] t [SEP], types 0 and 1, WordPiece; the head reads tanh(pooler(first)).
    "bert": Family(encoder="bert."),
    # Liu et al. 2019. <s> q </s></s> t </s>, byte-level BPE; no pooler: the head has its own dense layer.
    "roberta": _ROBERTA,
    # Conneau et al. 2020. RoBERTa with Unigram pieces of 100 languages.
    "xlm-roberta": _ROBERTA,
    # Martin et al. 2020. RoBERTa with French Unigram pieces.
    "camembert": _ROBERTA,
    # Clark et al. 2020. BERT's pairs, RoBERTa's head with GELU; embeddings of 128 in the small ones.
    "electra": Family(encoder="electra.", names=_DENSE_HEAD, defaults={"embedding_size": 128}, head="gelu"),
    # Sanh et al. 2019. BERT's pairs without token types; ReLU in the head.
    "distilbert": Family(
        encoder="distilbert.",
        names={"bert.pooler.dense.": "pre_classifier."},
        layer="transformer.layer.",
        in_layer={
            "attention.self.query.": "attention.q_lin.",
            "attention.self.key.": "attention.k_lin.",
            "attention.self.value.": "attention.v_lin.",
            "attention.output.dense.": "attention.out_lin.",
            "attention.output.LayerNorm.": "sa_layer_norm.",
            "intermediate.dense.": "ffn.lin1.",
            "output.dense.": "ffn.lin2.",
            "output.LayerNorm.": "output_layer_norm.",
        },
        fields={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        token_types=None,
        head="relu",
        reads=lambda _, shape: replace(shape, layer_norm_eps=1e-12),  # its config.json has no say in it
    ),
    # Warner et al. 2024, https://arxiv.org/abs/2412.13663. Pre-norm, rotary positions, GeGLU, local
    # attention; byte-level BPE, BERT's pairs. All forms of its fields in published checkpoints are read.
    "modernbert": Family(
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
        fixed={"rope_scaling": None},  # but not position_embedding_type: configs disagree on it
        token_types=None,
        reads=_modernbert,
        writes=_modernbert_fields,
        keeps_first_layer=True,
    ),
    # DeBERTa-v2 and v3: He et al. 2021, https://arxiv.org/abs/2006.03654, https://arxiv.org/abs/2111.09543.
    # Attention to content and to distances in buckets that grow; Unigram pieces, BERT's pairs. All published
    # ones share their maps of queries and keys with distances, whose table they normalise.
    "deberta-v2": Family(
        encoder="deberta.",
        names={"bert.pooler.": "pooler.", "bert.embeddings_project.": "deberta.embeddings.embed_proj."},
        in_layer={
            f"attention.self.{name}.": f"attention.self.{name}_proj." for name in ("query", "key", "value")
        },
        network="deberta",
        defaults={"layer_norm_eps": 1e-7},
        # With a kernel, a convolution would follow the first layer, as in v2 xlarge and xxlarge.
        fixed={"position_embedding_type": "absolute", "conv_kernel_size": 0, "type_vocab_size": 0},
        token_types=None,
        reads=_deberta,
    ),
    # The next three bring code of their own, which is never run: our network computes the same.
    # GTE: Zhang et al. 2024, https://arxiv.org/abs/2407.19669. BERT with rotary positions and gated layers;
    # XLM-RoBERTa's pieces and pairs.
    "new": Family(
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
        reads=_gte,
        in_transformers=False,
    ),
    # Günther et al. 2023, https://arxiv.org/abs/2310.19923. BERT with ALiBi's slopes and gated layers;
    # byte-level BPE. Its model_type is "bert".
    "jina-bert": Family(
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
    ),
    # Jina's second reranker: XLM-RoBERTa with the tensors of flash-attention's BERT.
    "xlm-roberta-flash": Family(
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
    ),
    # Decoders: rotary positions, grouped keys, RMS norms, gated layers; an answer or labels are read at the
    # last token of a prompt (`headroom.models.checkpoint.prompt`). Byte-level BPE, or Gemma's BPE of whole
    # texts.
    "qwen3": decoders("Qwen3", head_size=128, head_norms=True),
    "qwen2": decoders("Qwen2", biases=PROJECTIONS),
    "gemma": decoders("Gemma", head_size=256, is_gemma=True),
}


def family_of(raw: Fields) -> str:
    """Return the family of a parsed config.json. Raises UnsupportedCheckpoint if it is none of FAMILIES.

    Configs from before `model_type` are told apart by `architectures`; without these too, they are BERT's.
    """
    model_type = raw.get("model_type")
    architectures = raw.get("architectures") or ["BertModel"]
    own_code = raw.get("auto_map") or {}
    named = OF_CONFIG.get(str(own_code.get("AutoConfig")).rsplit(".", 1)[-1], model_type)
    if named is None:  # XLMRobertaForSequenceClassification
        class_names = {name.replace("-", ""): name for name in FAMILIES}
        named = class_names.get(re.split("For|Model", architectures[0])[0].lower())
    family = str(named)
    is_listwise = architectures == ["JinaForRanking"]
    if family not in FAMILIES or is_listwise:
        kind = " (a listwise reranker)" if is_listwise else ""
        raise UnsupportedCheckpoint(
            f"config.json: model_type is {model_type!r}, and architectures is "
            f"{raw.get('architectures')!r}{kind}; supported: {', '.join(FAMILIES)}"
        )
    is_own = FAMILIES[family].in_transformers and any(name.startswith("AutoModel") for name in own_code)
    need(not is_own, "auto_map", own_code, "the checkpoint brings code of its own, which is not run")
    return family


def removable_layers(config: ModelConfig) -> list[int]:
    """Return the layers that the family's format allows to remove."""
    return list(range(FAMILIES[config.family].keeps_first_layer, config.num_layers))
