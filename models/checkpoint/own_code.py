"""Families whose checkpoints bring code of their own, which is never run: our network computes the same.

GTE "new" (Zhang et al. 2024, https://arxiv.org/abs/2407.19669) and JinaBERT (Günther et al. 2023,
https://arxiv.org/abs/2310.19923) are BERT with gated feed-forward layers; one rotates queries and keys by
their positions, the other has ALiBi's slopes. Jina's second reranker is XLM-RoBERTa with the tensors of
flash-attention's BERT.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.checkpoint.config import ModelConfig, Rope
from models.checkpoint.family import Family
from models.checkpoint.fields import need, positive_float
from models.checkpoint.shapes import GATES, PROJECTIONS


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
        **{f"{name}.": "attention.qkv_proj." for name in PROJECTIONS},
        "attention.self.": "attention.qkv_proj.",  # the quantization of its input
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
        **{f"{name}.": "mixer.Wqkv." for name in PROJECTIONS},
        "attention.self.": "mixer.Wqkv.",  # the quantization of its input
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
