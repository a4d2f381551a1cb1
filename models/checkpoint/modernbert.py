"""The family `modernbert`: what its config.json says, and how it names its tensors.

Warner et al. 2024, https://arxiv.org/abs/2412.13663. Releases of transformers name some fields differently;
all forms that published checkpoints use are read. Our maps and norms always have biases: where the checkpoint
has none they are zeros, and are left out again when it is written.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.checkpoint.config import ModelConfig, Rope
from models.checkpoint.family import Family
from models.checkpoint.fields import activation, flag, need, positive_float, positive_int
from models.checkpoint.shapes import ATTENTION, MLP, PRE_NORMS, PROJECTIONS

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


def _read(raw: Mapping[str, Any], shape: ModelConfig) -> ModelConfig:
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
        **{f"{name}.": "attn.Wqkv." for name in PROJECTIONS},
        "attention.self.": "attn.Wqkv.",  # the quantization of its input
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
    reads=_read,
    writes=lambda config: {"layer_types": [GLOBAL if one is None else LOCAL for one in config.windows]},
    keeps_first_layer=True,
)
