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
from functools import partial
from typing import TYPE_CHECKING

from headroom.models.checkpoint.family import Family
from headroom.models.checkpoint.fields import Fields, check, choice, need, positive_float, positive_int
from headroom.models.checkpoint.model_config import Decoder, ModelConfig, Rope
from headroom.models.checkpoint.tensor_names import ATTENTION, MLP
from headroom.models.files import Json

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
    biases: tuple[str, ...] = (),
    is_gemma: bool = False,
) -> Family:
    """Return a family of decoders.

    architecture: begins the names of its classes. head_size: if config.json does not say it; None:
        d_model / heads.
    biases: the maps of attention that always have one; empty: config.json says whether all have.
    is_gemma: embeddings are multiplied by √d_model, and 1 is added to the weights of norms.
    """

    def read(raw: Fields, shape: ModelConfig) -> ModelConfig:
        """Return the shape with what only a decoder's config.json says."""
        kinds = set(raw.get("layer_types") or ())
        need(kinds <= {"full_attention"}, "layer_types", kinds, "sliding windows are not supported")
        size = raw.get("head_dim") or head_size or shape.head_size
        size = positive_int({"head_dim": size}, "head_dim", maximum=8_192)
        rope = read_rope(raw, size, shape.max_positions, ("linear", "yarn"))
        biased = ATTENTION if raw.get("attention_bias") and not biases else biases
        is_old_gelu = is_gemma and shape.activation == "gelu"  # transformers reads it as the other one
        decoder = Decoder(
            head_size=size,
            key_heads=_key_heads(raw, shape.num_heads),
            head_norms=head_norms,
            norm_offset=float(is_gemma),
            embedding_scale=math.sqrt(shape.hidden_size) if is_gemma else 1.0,
        )
        return replace(
            shape,
            activation="gelu_tanh" if is_old_gelu else shape.activation,
            gated=True,
            pre_norm=True,
            absolute_positions=False,
            without_bias=frozenset({*ATTENTION, *MLP} - {*biased}),
            ropes=(rope,) * shape.num_layers,
            decoder=_with_head(raw, decoder, architecture, is_tied=raw.get("tie_word_embeddings", is_gemma)),
        )

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
        writes=partial(_fields, architecture),
    )


def _key_heads(raw: Fields, heads: int) -> int:
    """Return the number of heads of keys and values, which as many heads of queries share each."""
    key_heads = positive_int(raw, "num_key_value_heads", heads, maximum=heads)
    wanted = f"each must serve equally many of the {heads} heads of queries"
    need(heads % key_heads == 0, "num_key_value_heads", key_heads, wanted)
    return key_heads


def _with_head(raw: Fields, decoder: Decoder, architecture: str, *, is_tied: bool) -> Decoder:
    """Return a decoder with what is read at the end of its pairs: answers, or the labels of a classifier."""
    ours = raw.get("headroom") or {}
    classifier = [f"{architecture}ForSequenceClassification"]
    language_model = [f"{architecture}ForCausalLM"]
    decoder = replace(decoder, instruction=ours.get("instruction"))
    if choice(raw, "architectures", (classifier, language_model, [], None)) == language_model:
        vocabulary = "model.embed_tokens.weight" if is_tied else "lm_head.weight"
        return replace(decoder, vocabulary=vocabulary, answers=tuple(ours.get("score_tokens") or ()))
    pad = raw.get("pad_token_id")
    need(pad is None or type(pad) is int, "pad_token_id", pad, "it must be a whole number")
    prompt = choice({"headroom.prompt": ours.get("prompt")}, "headroom.prompt", (None, "pair"))
    return replace(decoder, pad_token=pad, plain_pairs=prompt == "pair")


def _fields(architecture: str, config: ModelConfig) -> Json:
    """Return the fields of config.json of a decoder that is written: a classifier."""
    labels = dict(zip(config.label_order, config.labels, strict=True))
    return {
        "architectures": [f"{architecture}ForSequenceClassification"],
        "layer_types": ["full_attention"] * config.num_layers,
        "id2label": {str(number): labels[number] for number in sorted(labels)},
        "label2id": {name: number for number, name in labels.items()},
        "sentence_transformers": {"activation_fn": _ACTIVATION_FN.get(config.score_activation)},
    }


def answer_row(decoder: Decoder, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the classifier of a language model, (1, d_model): the difference of its answers' rows."""
    name = decoder.vocabulary or ""
    answers = decoder.answers
    has_rows = name in tensors and answers and max(answers) < len(tensors[name])
    check(has_rows, f"tensor {name} has no rows for the answers {answers}")
    relevant, *irrelevant = (tensors[name][token].float() for token in answers)
    row = relevant - irrelevant[0] if irrelevant else relevant.clone()  # not the table's memory
    return row[None]


def read_rope(raw: Fields, head_size: int, positions: int, kinds: Sequence[str]) -> Rope:
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
    return _yarn(given, Rope(theta, factor), head_size, positions)


def _yarn(given: Fields, rope: Rope, head_size: int, positions: int) -> Rope:
    """Return angles with YaRN's ramp, between the frequencies that turn `beta_fast` and `beta_slow` times in
    the window that the model was trained with first."""
    window = positive_int(given, "original_max_position_embeddings", positions)

    def index(turns: float) -> float:
        """Return the i whose angle turns so many times in the window."""
        return head_size * math.log(window / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = index(given.get("beta_fast") or 32.0)
    high = index(given.get("beta_slow") or 1.0)
    if given.get("truncate", True):
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, head_size - 1)
    if high <= low:
        high = low + 0.001
    usual_length = 0.1 * math.log(rope.factor) + 1 if rope.factor > 1 else 1.0
    length = positive_float(given.get("attention_factor") or usual_length, "attention_factor")
    return replace(rope, ramp=(low, high), length=length)
