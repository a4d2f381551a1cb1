"""The family `modernbert`: what its config.json says, and how it names its tensors.

Warner et al. 2024, https://arxiv.org/abs/2412.13663. Releases of transformers name some fields differently;
all forms that published checkpoints use are read. Our maps and norms always have biases: where the checkpoint
has none they are zeros, and are left out again when it is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.checkpoint.config import ModelConfig, Rope
from models.checkpoint.family import Expected, Family
from models.checkpoint.fields import activation, flag, need, positive_float, positive_int
from models.checkpoint.shapes import PROJECTIONS, modernbert_shapes

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""The names of the two kinds of layers in `layer_types` and `rope_parameters`."""

THETAS = {GLOBAL: 160_000.0, LOCAL: 10_000.0}
"""The bases of the rotary angles if config.json gives none."""

_ROPE_FIELDS = {"rope_type", "rope_theta", "partial_rotary_factor"}
"""The fields of a kind in `rope_parameters`; transformers ignores the last one here."""

_NAMES = {
    "bert.embeddings.word_embeddings.": "model.embeddings.tok_embeddings.",
    "bert.embeddings.LayerNorm.": "model.embeddings.norm.",
    "bert.pooler.dense.": "head.dense.",
    "bert.pooler.LayerNorm.": "head.norm.",
}
_IN_LAYER = {
    "attention.LayerNorm.": "attn_norm.",
    **{f"{name}.": "attn.Wqkv." for name in PROJECTIONS},
    "attention.self.": "attn.Wqkv.",  # the quantization of its input
    "attention.output.dense.": "attn.Wo.",
    "intermediate.LayerNorm.": "mlp_norm.",
    "intermediate.dense.": "mlp.Wi.",
    "gate.dense.": "mlp.Wi.",
    "output.dense.": "mlp.Wo.",
}


@dataclass(frozen=True, kw_only=True)
class ModernBertFamily(Family):
    """The family ModernBERT, as the rest of the program sees it."""

    encoder: str = "model."
    names: Mapping[str, str] = field(default_factory=lambda: _NAMES)
    layer: str = "layers."
    in_layer: Mapping[str, str] = field(default_factory=lambda: _IN_LAYER)
    network: str = "modernbert"
    expected: Expected = modernbert_shapes
    keeps_first_layer: bool = True

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape, from a parsed config.json."""
        hidden, heads, layers = (
            positive_int(raw, name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        wanted = f"it must be an even multiple of num_attention_heads {heads}"
        need(hidden % (2 * heads) == 0, "hidden_size", hidden, wanted)
        kinds = _kinds(raw, layers)
        thetas = _thetas(raw)
        window = _window(raw)
        pooling = raw.get("classifier_pooling", "cls")
        need(pooling in ("cls", "mean"), "classifier_pooling", pooling, "supported: 'cls', 'mean'")
        return ModelConfig(
            vocab_size=positive_int(raw, "vocab_size"),
            hidden_size=hidden,
            embedding_size=hidden,
            num_layers=layers,
            num_heads=heads,
            intermediate_size=positive_int(raw, "intermediate_size"),
            max_positions=positive_int(raw, "max_position_embeddings", 8192),
            type_vocab_size=0,
            layer_norm_eps=positive_float(raw.get("norm_eps", 1e-5), "norm_eps"),
            activation=activation(raw, "hidden_activation"),
            head_activation=activation(raw, "classifier_activation"),
            gated=True,
            windows=tuple(window if kind == LOCAL else None for kind in kinds),
            ropes=tuple(Rope(thetas[kind]) for kind in kinds),
            pools_mean=pooling == "mean",
            attention_bias=flag(raw, "attention_bias"),
            mlp_bias=flag(raw, "mlp_bias"),
            norm_bias=flag(raw, "norm_bias"),
            head_bias=flag(raw, "classifier_bias"),
        )

    def fields_of(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that say which layers there are, and how many units they have."""
        return {
            "num_hidden_layers": config.num_layers,
            "intermediate_size": config.intermediate_size,
            "layer_types": [GLOBAL if window is None else LOCAL for window in config.windows],
        }


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
    scaling, parameters = raw.get("rope_scaling"), raw.get("rope_parameters") or {}
    need(scaling is None, "rope_scaling", scaling, "only plain rotary positions are supported")
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
