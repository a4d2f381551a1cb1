"""Families whose checkpoints bring code of their own, which is never run: our network computes the same.

GTE "new" (Zhang et al. 2024, https://arxiv.org/abs/2407.19669) and JinaBERT (Günther et al. 2023,
https://arxiv.org/abs/2310.19923) are BERT with gated feed-forward layers; one rotates queries and keys by
their positions, the other has ALiBi's slopes. Jina's second reranker is XLM-RoBERTa with the tensors of
flash-attention's BERT.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from models.checkpoint.config import ModelConfig, Rope
from models.checkpoint.family import Expected, LikeBert
from models.checkpoint.fields import need, positive_float, positive_int
from models.checkpoint.shapes import PROJECTIONS, Shapes, bert_shapes

_GTE_LAYER = {
    **{f"{name}.": "attention.qkv_proj." for name in PROJECTIONS},
    "attention.self.": "attention.qkv_proj.",  # the quantization of its input
    "attention.output.dense.": "attention.o_proj.",
    "attention.output.LayerNorm.": "attn_ln.",
    "gate.dense.": "mlp.up_gate_proj.",
    "intermediate.dense.": "mlp.up_gate_proj.",
    "output.dense.": "mlp.down_proj.",
    "output.LayerNorm.": "mlp_ln.",
}
_JINA_LAYER = {
    "intermediate.dense.": "mlp.gated_layers.",
    "gate.dense.": "mlp.gated_layers.",
    "output.dense.": "mlp.wo.",
    "output.LayerNorm.": "mlp.layernorm.",
}
FLASH_NAMES = {
    "bert.pooler.dense.": "classifier.dense.",
    "classifier.": "classifier.out_proj.",
    "bert.embeddings.LayerNorm.": "roberta.emb_ln.",
}
FLASH_LAYER = {
    **{f"{name}.": "mixer.Wqkv." for name in PROJECTIONS},
    "attention.self.": "mixer.Wqkv.",  # the quantization of its input
    "attention.output.dense.": "mixer.out_proj.",
    "attention.output.LayerNorm.": "norm1.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
    "output.LayerNorm.": "norm2.",
}


@dataclass(frozen=True, kw_only=True)
class _Gated(LikeBert):
    """A family of gated layers without embeddings of positions; its gates have no bias."""

    token_types: int = 0  # as config.json says
    in_transformers: bool = False

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""
        types = raw.get("type_vocab_size", 2)
        return replace(
            super().shape(raw),
            type_vocab_size=positive_int(raw, "type_vocab_size") if types else 0,
            gated=True,
            gate_bias=False,
            absolute_positions=False,
        )


def _gate_first(config: ModelConfig) -> Shapes:
    """Return BERT's tensors, a layer's gate first, as the checkpoint holds them: its `up_gate_proj` has the
    map without activation above the other."""
    up, gate = ".intermediate.dense.", ".gate.dense."
    for name, shape in bert_shapes(config):
        yield name.replace(up, gate) if up in name else name.replace(gate, up), shape


@dataclass(frozen=True, kw_only=True)
class GteFamily(_Gated):
    """The family `new`."""

    encoder: str = "new."
    in_layer: Mapping[str, str] = field(default_factory=lambda: _GTE_LAYER)
    expected: Expected = _gate_first

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""
        fixed = {
            "position_embedding_type": "rope",
            "layer_norm_type": "layer_norm",
            "pack_qkv": True,
            "logn_attention_scale": False,
            "logn_attention_clip1": False,
        }
        _check_fixed(raw, fixed)
        shape = super().shape(raw)
        need(shape.head_size % 2 == 0, "hidden_size", shape.hidden_size, "heads must be even, to be rotated")
        return replace(shape, ropes=(_rope(raw, shape.head_size),) * shape.num_layers)


@dataclass(frozen=True, kw_only=True)
class JinaBertFamily(_Gated):
    """JinaBERT (`model_type` "bert"). Without `num_labels` it has one, as its reranker's card says."""

    encoder: str = "bert."
    in_layer: Mapping[str, str] = field(default_factory=lambda: _JINA_LAYER)
    network: str = "alibi"
    default_labels: int = 1

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""
        kinds = {"geglu": "gelu", "reglu": "relu"}
        kind = raw.get("feed_forward_type", "original")
        wanted = f"with position_embedding_type 'alibi', {' and '.join(kinds)} are supported"
        need(kind in kinds, "feed_forward_type", kind, wanted)
        return super().shape({**raw, "hidden_act": kinds[kind]})


@dataclass(frozen=True, kw_only=True)
class FlashRobertaFamily(LikeBert):
    """XLM-RoBERTa as `XLMRobertaFlashConfig` describes it."""

    encoder: str = "roberta."
    names: Mapping[str, str] = field(default_factory=lambda: FLASH_NAMES)
    layer: str = "encoder.layers."
    in_layer: Mapping[str, str] = field(default_factory=lambda: FLASH_LAYER)
    token_types: int = 1
    skips_pad: bool = True
    in_transformers: bool = False

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""
        _check_fixed(raw, {"position_embedding_type": "absolute", "lora_adaptations": None})
        return super().shape(raw)


_OF_CONFIG = {"JinaBertConfig": "jina-bert", "XLMRobertaFlashConfig": "xlm-roberta-flash"}
"""The class of configuration that `auto_map` names → the family that computes the same."""


def family_of_own_code(raw: Mapping[str, Any]) -> str | None:
    """Return the family of a checkpoint that brings code for a network that is known; None for any other."""
    if raw.get("model_type") == "new":
        return "new"
    own_code = raw.get("auto_map")
    name = str(own_code.get("AutoConfig")).rsplit(".", 1)[-1] if isinstance(own_code, Mapping) else ""
    family = _OF_CONFIG.get(name)
    is_older = family == "jina-bert" and raw.get("position_embedding_type") != "alibi"
    return None if is_older else family


def _check_fixed(raw: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    for name, value in fixed.items():
        need(raw.get(name, value) == value, name, raw.get(name), f"only {value!r} is supported")


def _rope(raw: Mapping[str, Any], head_size: int) -> Rope:
    """Return the rotary angles. With NTK scaling by f, θ becomes θ·f and angles shrink by f^(2/d)
    (https://kexue.fm/archives/9706); `mixed_b` is an exponent, with which θ stays."""
    theta, scaling = positive_float(raw.get("rope_theta", 10_000.0), "rope_theta"), raw.get("rope_scaling")
    if scaling is None:
        return Rope(theta)
    is_ntk = isinstance(scaling, Mapping) and scaling.get("type") == "ntk"
    need(is_ntk, "rope_scaling", scaling, "only type 'ntk' is supported")
    factor, mixed = positive_float(scaling.get("factor"), "rope_scaling.factor"), scaling.get("mixed_b")
    if mixed is None:
        return Rope(theta * factor, factor ** (2 / head_size))
    return Rope(theta, factor, exponent=positive_float(mixed, "rope_scaling.mixed_b"))
