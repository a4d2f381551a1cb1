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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from models.checkpoint.config import ModelConfig, Rope
from models.checkpoint.family import Expected, Family
from models.checkpoint.fields import activation, flag, need, positive_float, positive_int
from models.checkpoint.shapes import decoder_shapes
from models.errors import UnsupportedCheckpoint

if TYPE_CHECKING:
    from torch import Tensor

_TABLE = "model.embed_tokens.weight"
_NAMES = {
    "bert.embeddings.word_embeddings.": "model.embed_tokens.",
    "bert.final_norm.": "model.norm.",
    "classifier.": "score.",
}
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
    embedding_scale: embeddings are multiplied by it. output_bias: W^O has a bias in the checkpoint.
    vocabulary: the tensor whose rows are read for `answers`, the relevant one first; None: a classifier.
    instruction: of pairs that bring none; None: the template's own.
    """

    head_size: int
    key_heads: int
    head_norms: bool
    norm_offset: float
    embedding_scale: float
    output_bias: bool
    vocabulary: str | None
    answers: tuple[int, ...]
    instruction: str | None


@dataclass(frozen=True, kw_only=True)
class DecoderFamily(Family):
    """A family of decoders.

    architecture: begins the names of its classes. head_size: if config.json does not say it; None: as BERT's.
    projection_bias: W^Q, W^K and W^V have biases, and W^O has none; None: config.json says it for all four.
    is_gemma: embeddings are multiplied by √d_model, and 1 is added to the weights of norms.
    """

    architecture: str
    head_size: int | None = None
    head_norms: bool = False
    projection_bias: bool | None = None
    is_gemma: bool = False
    encoder: str = "model."
    names: Mapping[str, str] = field(default_factory=lambda: _NAMES)
    layer: str = "layers."
    in_layer: Mapping[str, str] = field(default_factory=lambda: _IN_LAYER)
    network: str = "decoder"
    expected: Expected = decoder_shapes

    def described(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a config.json with one label if it is a language model's.

        The score is the probability of the relevant of two answers, whatever activation is stored.
        """
        if not self._is_language_model(raw):
            return raw
        found = {**raw, "id2label": {"0": "LABEL_0"}, "num_labels": 1}
        ours = raw.get("headroom")
        if isinstance(ours, Mapping) and len(ours.get("score_tokens") or ()) == 2:
            found |= {"sentence_transformers": None, "sbert_ce_default_activation_function": None}
        return found

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""
        hidden, heads, layers = (
            positive_int(raw, name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        key_heads = positive_int(raw, "num_key_value_heads", heads)
        need(heads % key_heads == 0, "num_key_value_heads", key_heads, f"it must divide {heads} heads")
        whole = hidden // heads if self.head_size is None else self.head_size
        head_size = positive_int({"head_dim": raw.get("head_dim") or whole}, "head_dim")
        need(head_size % 2 == 0, "head_dim", head_size, "it must be even, to be rotated")
        kinds = raw.get("layer_types") or []
        windows = bool(raw.get("use_sliding_window")) or any(kind != "full_attention" for kind in kinds)
        need(not windows, "layer_types", kinds, "sliding windows are not supported")
        bidirectional = raw.get("use_bidirectional_attention")
        need(not bidirectional, "use_bidirectional_attention", bidirectional, "only causal attention is")
        act = activation(raw, "hidden_act", "gelu_pytorch_tanh" if self.is_gemma else "silu")
        positions = positive_int(raw, "max_position_embeddings", 8_192 if self.is_gemma else 32_768)
        biased = flag(raw, "attention_bias") if self.projection_bias is None else self.projection_bias
        ours = raw.get("headroom") or {}
        language_model = self._is_language_model(raw)
        answers = ours.get("score_tokens") or []
        is_right = isinstance(answers, list) and all(type(token) is int and token >= 0 for token in answers)
        need(is_right and len(answers) <= 2, "headroom.score_tokens", answers, "it must hold one or two ids")
        return ModelConfig(
            vocab_size=positive_int(raw, "vocab_size"),
            hidden_size=hidden,
            embedding_size=hidden,
            num_layers=layers,
            num_heads=heads,
            intermediate_size=positive_int(raw, "intermediate_size"),
            max_positions=positions,
            type_vocab_size=0,
            layer_norm_eps=positive_float(raw.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
            activation="gelu_tanh" if self.is_gemma and act == "gelu" else act,  # as transformers reads it
            gated=True,
            absolute_positions=False,
            attention_bias=biased,
            mlp_bias=False,
            ropes=(_rope(raw, positions, head_size),) * layers,
            decoder=Decoder(
                head_size=head_size,
                key_heads=key_heads,
                head_norms=self.head_norms,
                norm_offset=float(self.is_gemma),
                embedding_scale=math.sqrt(hidden) if self.is_gemma else 1.0,
                output_bias=biased and self.projection_bias is None,
                vocabulary=self._vocabulary(raw) if language_model else None,
                answers=tuple(answers) if language_model else (),
                instruction=ours.get("instruction"),
            ),
        )

    def fields_of(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that say which layers, units and labels there are."""
        labels = dict(zip(config.label_order, config.labels, strict=True))
        return {
            "architectures": [f"{self.architecture}ForSequenceClassification"],
            "num_hidden_layers": config.num_layers,
            "intermediate_size": config.intermediate_size,
            "layer_types": ["full_attention"] * config.num_layers,
            "id2label": {str(number): labels[number] for number in sorted(labels)},
            "label2id": {name: number for number, name in labels.items()},
            "sentence_transformers": {"activation_fn": _ACTIVATION_FN.get(config.score_activation)},
        }

    def ours(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return a checkpoint's tensors as our network takes them; of a vocabulary's matrix, one row."""
        assert config.decoder is not None
        name, answers = config.decoder.vocabulary, config.decoder.answers
        if name is not None:
            if name not in tensors or not answers or max(answers) >= len(tensors[name]):
                raise UnsupportedCheckpoint(f"tensor {name} has no rows for the answers {answers}")
            relevant, *irrelevant = (tensors[name][token].float() for token in answers)
            row = relevant - irrelevant[0] if irrelevant else relevant.clone()  # not the table's memory
            tensors = {**tensors, "score.weight": row[None]}
        return super().ours(tensors, config)

    def _is_language_model(self, raw: Mapping[str, Any]) -> bool:
        """Return whether a config.json is a language model's, and no classifier's."""
        named = raw.get("architectures") or [f"{self.architecture}ForSequenceClassification"]
        kinds = {f"{self.architecture}For{kind}": kind for kind in ("CausalLM", "SequenceClassification")}
        is_known = isinstance(named, list) and len(named) == 1 and named[0] in kinds
        need(is_known, "architectures", named, f"supported: {' and '.join(kinds)}")
        return kinds[named[0]] == "CausalLM"

    def _vocabulary(self, raw: Mapping[str, Any]) -> str:
        """Return the tensor that scores the vocabulary: the embeddings if both are one."""
        return _TABLE if raw.get("tie_word_embeddings", self.is_gemma) else "lm_head.weight"


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
