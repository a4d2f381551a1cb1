"""Decoders as rerankers, `qwen3`, `qwen2` and `gemma`: what their config.json says, their tensors' names.

A reranker that is a language model (`…ForCausalLM`) answers with its next token. Of the matrix that scores
the vocabulary, only the rows of the answers are read: logit = h·(relevant − irrelevant), or h·relevant. So
the network has one label, and a checkpoint that is written again is a `…ForSequenceClassification`.
Yang et al. 2025, https://arxiv.org/abs/2505.09388 (Qwen3), Yang et al. 2024,
https://arxiv.org/abs/2407.10671 (Qwen2); Gemma Team 2024, https://arxiv.org/abs/2403.08295.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from models.checkpoint.family import Family
from models.checkpoint.fields import check, choice, need, positive_float, positive_int
from models.checkpoint.model_config import Decoder, ModelConfig, Rope
from models.checkpoint.tensor_names import ATTENTION, MLP

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
_YARN = ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate")


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
        size = positive_int({"head_dim": raw.get("head_dim") or head_size or shape.head_size}, "head_dim")
        rope = read_rope(raw, size, shape.max_positions, ("linear", "yarn"))
        kinds = set(raw.get("layer_types") or ())
        need(kinds <= {"full_attention"}, "layer_types", kinds, "sliding windows are not supported")
        biased = raw.get("attention_bias", False) if projection_bias is None else projection_bias
        without = () if biased and projection_bias is None else ATTENTION[-1:] if biased else ATTENTION
        known = [[f"{architecture}For{kind}"] for kind in ("SequenceClassification", "CausalLM")]
        is_language_model = choice(raw, "architectures", (*known, [], None)) == known[1]
        ours = raw.get("headroom") or {}
        way = choice(ours, "prompt", (None, "pair"))
        pad = raw.get("pad_token_id")
        need(pad is None or type(pad) is int, "pad_token_id", pad, "it must be a whole number")
        key_heads = positive_int(raw, "num_key_value_heads", shape.num_heads, shape.num_heads)
        wanted = f"the {shape.num_heads} heads of queries must share them in groups of one size"
        need(shape.num_heads % key_heads == 0, "num_key_value_heads", key_heads, wanted)
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
            ropes=(rope,) * shape.num_layers,
            decoder=Decoder(
                head_size=size,
                key_heads=key_heads,
                head_norms=head_norms,
                norm_offset=float(is_gemma),
                embedding_scale=math.sqrt(shape.hidden_size) if is_gemma else 1.0,
                vocabulary=vocabulary if is_language_model else None,
                answers=tuple(ours.get("score_tokens") or ()) if is_language_model else (),
                instruction=ours.get("instruction"),
                plain_pairs=way == "pair" and not is_language_model,
                pad_token=None if is_language_model else pad,
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
        names={
            "bert.embeddings.word_embeddings.": "model.embed_tokens.",
            "bert.final_norm.": "model.norm.",
            "classifier.": "score.",
        },
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
        reads=read,
        writes=write,
    )


def answer_row(decoder: Decoder, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the classifier of a language model, (1, d_model): the difference of its answers' rows."""
    name, answers = decoder.vocabulary or "", decoder.answers
    has_rows = name in tensors and answers and max(answers) < len(tensors[name])
    check(has_rows, f"tensor {name} has no rows for the answers {answers}")
    relevant, *irrelevant = (tensors[name][token].float() for token in answers)
    row = relevant - irrelevant[0] if irrelevant else relevant.clone()  # not the table's memory
    return row[None]


def read_rope(raw: Mapping[str, Any], head_size: int, positions: int, kinds: Sequence[str]) -> Rope:
    """Return the rotary angles: of `rope_parameters`, or of the fields of transformers 4. kinds: of scaling
    that the family may have: linear, yarn or ntk."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = positive_float(given.get("rope_theta", raw.get("rope_theta", 10_000.0)), "rope_theta")
    kind = given.get("rope_type", given.get("type", "default"))
    fields = {"default": (), "yarn": ("factor", *_YARN)}.get(kind, ("factor",))
    is_known = kind in ("default", *kinds) and given.keys() <= {"rope_type", "type", "rope_theta", *fields}
    need(is_known, "rope_scaling", given, f"supported: default, {', '.join(kinds)}")
    if kind == "default":
        return Rope(theta)
    factor = positive_float(given.get("factor"), "rope_scaling.factor")
    if kind == "linear":
        return Rope(theta, factor)
    if kind == "ntk":  # θ becomes θ·f, and angles shrink by f^(2/d) (https://kexue.fm/archives/9706)
        return Rope(theta * factor, factor ** (2 / head_size))
    whole = positive_int(given, "original_max_position_embeddings", positions)
    low, high = (
        head_size * math.log(whole / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (given.get("beta_fast") or 32.0, given.get("beta_slow") or 1.0)
    )
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    length = given.get("attention_factor") or (0.1 * math.log(factor) + 1 if factor > 1 else 1.0)
    ramp = low, high if high > low else low + 0.001
    return Rope(theta, factor, ramp, length=positive_float(length, "length"))
