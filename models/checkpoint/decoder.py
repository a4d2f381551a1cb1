"""Decoders as rerankers, `qwen3`, `qwen2` and `gemma`: what their config.json says, their tensors' names.

A reranker that is a language model (`…ForCausalLM`) answers with its next token. Of the matrix that scores
the vocabulary, only the rows of the answers are read: logit = h·(relevant − irrelevant), or h·relevant. So
the network has one label, and a checkpoint that is written again is a `…ForSequenceClassification`.
Yang et al. 2025, https://arxiv.org/abs/2505.09388 (Qwen3), Yang et al. 2024,
https://arxiv.org/abs/2407.10671 (Qwen2); Gemma Team 2024, https://arxiv.org/abs/2403.08295.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from models.checkpoint.config import ModelConfig, Rope
from models.checkpoint.family import Family
from models.checkpoint.fields import flag, need, positive_float, positive_int
from models.checkpoint.shapes import ATTENTION, MLP
from models.errors import UnsupportedCheckpoint

if TYPE_CHECKING:
    from torch import Tensor

_IN_LAYER = {
    **{f"attention.self.{name}.": f"self_attn.{name[0]}_proj." for name in ("query", "key", "value")},
    "attention.self.query_norm.": "self_attn.q_norm.",
    "attention.self.key_norm.": "self_attn.k_norm.",
    "attention.self.": "self_attn.",  # the quantization of its input
    "attention.output.dense.": "self_attn.o_proj.",
    "attention.LayerNorm.": "input_layernorm.",
    "intermediate.LayerNorm.": "post_attention_layernorm.",
    "intermediate.dense.": "mlp.gate_proj.",
    "gate.dense.": "mlp.up_proj.",
    "output.dense.": "mlp.down_proj.",
}
_ACTIVATION_FN = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "identity": "torch.nn.modules.linear.Identity",
}
_TURNS = {"fast": 32.0, "slow": 1.0}
_YARN = ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate")


@dataclass(frozen=True, slots=True)
class Decoder:
    """The parts of a decoder's network beyond `ModelConfig`.

    key_heads: heads of keys and values before pruning; each serves as many neighbouring heads of queries.
    head_norms: queries and keys are normalised. norm_offset: is added to the weights of norms.
    embedding_scale: embeddings are multiplied by it.
    vocabulary: the tensor whose rows are read for `answers`, the relevant one first; None: a classifier.
    instruction: of pairs that bring none; None: the template's own.
    """

    head_size: int
    key_heads: int
    head_norms: bool
    norm_offset: float
    embedding_scale: float
    vocabulary: str | None
    answers: tuple[int, ...]
    instruction: str | None


_NAMES = {
    "bert.embeddings.word_embeddings.": "model.embed_tokens.",
    "bert.final_norm.": "model.norm.",
    "classifier.": "score.",
}


def decoders(
    architecture: str,
    *,
    head_size: int | None = None,
    head_norms: bool = False,
    projection_bias: bool | None = None,
    is_gemma: bool = False,
) -> Family:
    """Return a family of decoders.

    architecture: begins the names of its classes. head_size: if config.json does not say it; None: as BERT's.
    projection_bias: W^Q, W^K and W^V have biases, and W^O has none; None: config.json says it for all four.
    is_gemma: embeddings are multiplied by √d_model, and 1 is added to the weights of norms.
    """

    def read(raw: Mapping[str, Any], shape: ModelConfig) -> ModelConfig:
        """Return the shape with what only a decoder's config.json says."""
        heads, layers = shape.num_heads, shape.num_layers
        key_heads = positive_int(raw, "num_key_value_heads", heads)
        need(heads % key_heads == 0, "num_key_value_heads", key_heads, f"it must divide {heads} heads")
        size = positive_int({"head_dim": raw.get("head_dim") or head_size or shape.head_size}, "head_dim")
        need(size % 2 == 0, "head_dim", size, "it must be even, to be rotated")
        kinds = raw.get("layer_types") or []
        is_whole = all(kind == "full_attention" for kind in kinds)
        need(is_whole, "layer_types", kinds, "sliding windows are not supported")
        biased = flag(raw, "attention_bias") if projection_bias is None else projection_bias
        without = () if biased and projection_bias is None else ATTENTION[-1:] if biased else ATTENTION
        is_language_model = _is_language_model(raw, architecture)
        ours = raw.get("headroom") or {}
        answers = ours.get("score_tokens") or []
        is_right = isinstance(answers, list) and all(type(token) is int and token >= 0 for token in answers)
        need(is_right and len(answers) <= 2, "headroom.score_tokens", answers, "it must hold one or two ids")
        is_tied = raw.get("tie_word_embeddings", is_gemma)
        vocabulary = "model.embed_tokens.weight" if is_tied else "lm_head.weight"
        is_old_gelu = is_gemma and shape.activation == "gelu"  # transformers reads it as the other one
        return replace(
            shape,
            activation="gelu_tanh" if is_old_gelu else shape.activation,
            gated=True,
            pre_norm=True,
            absolute_positions=False,
            without_bias=frozenset(without + MLP),
            ropes=(_rope(raw, shape.max_positions, size),) * layers,
            decoder=Decoder(
                head_size=size,
                key_heads=key_heads,
                head_norms=head_norms,
                norm_offset=float(is_gemma),
                embedding_scale=math.sqrt(shape.hidden_size) if is_gemma else 1.0,
                vocabulary=vocabulary if is_language_model else None,
                answers=tuple(answers) if is_language_model else (),
                instruction=ours.get("instruction"),
            ),
        )

    def write(config: ModelConfig) -> dict[str, Any]:
        labels = dict(zip(config.label_order, config.labels, strict=True))
        return {
            "architectures": [f"{architecture}ForSequenceClassification"],
            "layer_types": ["full_attention"] * config.num_layers,
            "id2label": {str(number): labels[number] for number in sorted(labels)},
            "label2id": {name: number for number, name in labels.items()},
            "sentence_transformers": {"activation_fn": _ACTIVATION_FN.get(config.score_activation)},
        }

    return Family(
        encoder="model.",
        names=_NAMES,
        layer="layers.",
        in_layer=_IN_LAYER,
        network="decoder",
        fields={"layer_norm_eps": "rms_norm_eps"},
        defaults={
            "max_position_embeddings": 8_192 if is_gemma else 32_768,
            "layer_norm_eps": 1e-6,
            "hidden_act": "gelu_pytorch_tanh" if is_gemma else "silu",
        },
        fixed={"use_sliding_window": False, "use_bidirectional_attention": False},
        token_types=None,
        heads_share=0,
        reads=read,
        writes=write,
    )


def _is_language_model(raw: Mapping[str, Any], architecture: str) -> bool:
    """Return whether a config.json is a language model's, and no classifier's."""
    known = [[f"{architecture}For{kind}"] for kind in ("SequenceClassification", "CausalLM")]
    named = raw.get("architectures") or known[0]
    need(named in known, "architectures", named, f"supported: {' and '.join(name for (name,) in known)}")
    return bool(named == known[1])


def answer_row(decoder: Decoder, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the classifier of a language model, (1, d_model): the difference of its answers' rows."""
    name, answers = decoder.vocabulary or "", decoder.answers
    if name not in tensors or not answers or max(answers) >= len(tensors[name]):
        raise UnsupportedCheckpoint(f"tensor {name} has no rows for the answers {answers}")
    relevant, *irrelevant = (tensors[name][token].float() for token in answers)
    row = relevant - irrelevant[0] if irrelevant else relevant.clone()  # not the table's memory
    return row[None]


def _rope(raw: Mapping[str, Any], positions: int, head_size: int) -> Rope:
    """Return the rotary angles: of `rope_parameters`, or of the fields of transformers 4."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    need(isinstance(given, Mapping), "rope_scaling", given, "it must be an object")
    theta = positive_float(given.get("rope_theta", raw.get("rope_theta", 10_000.0)), "rope_theta")
    kind = given.get("rope_type", given.get("type", "default"))
    known = {"default": set(), "linear": {"factor"}, "yarn": {"factor", *_YARN}}
    is_known = kind in known and given.keys() <= known[kind] | {"rope_type", "type", "rope_theta"}
    need(is_known, "rope_scaling", dict(given), f"supported: {', '.join(known)}")
    if kind == "default":
        return Rope(theta)
    factor = positive_float(given.get("factor"), "rope_scaling.factor")
    if kind == "linear":
        return Rope(theta, factor)
    whole = positive_int(given, "original_max_position_embeddings", positions)
    fast, slow = (positive_float(given.get(f"beta_{name}") or turns, name) for name, turns in _TURNS.items())
    low, high = (
        head_size * math.log(whole / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (fast, slow)
    )
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    length = given.get("attention_factor") or (0.1 * math.log(factor) + 1 if factor > 1 else 1.0)
    ramp = low, high if high > low else low + 0.001
    return Rope(theta, factor, ramp, length=positive_float(length, "length"))
