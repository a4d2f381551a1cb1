"""The family `modernbert`: what its config.json says, and how its tensors map to ours.

Warner et al. 2024, https://arxiv.org/abs/2412.13663. Releases of transformers name some fields differently;
all forms that published checkpoints use are read. Our maps and norms always have biases: where the checkpoint
has none they are zeros, and are left out again when it is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from models.checkpoint.config import ModelConfig
from models.checkpoint.fields import activation, positive_float, positive_int
from models.checkpoint.like_bert import layer_prefix
from models.errors import ModelError, UnsupportedCheckpoint

if TYPE_CHECKING:
    from torch import Tensor

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""The names of the two kinds of layers in `layer_types` and `rope_parameters`."""

THETAS = {GLOBAL: 160_000.0, LOCAL: 10_000.0}
"""The bases of the rotary angles if config.json gives none."""

_ROPE_FIELDS = {"rope_type", "rope_theta", "partial_rotary_factor"}
"""The fields of a kind in `rope_parameters`; transformers ignores the last one here."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")

_JOINED = {
    "attn.Wqkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "mlp.Wi": ("intermediate.dense", "gate.dense"),
}
"""The checkpoint's maps that hold several of ours, below each other."""

_OF_INPUT = {"attn.Wqkv": "attention.self", "mlp.Wi": "intermediate.dense"}
"""Where the quantization of the input of such a map stands."""

_IN_LAYER = {
    "attn_norm": "attention.LayerNorm",
    "attn.Wo": "attention.output.dense",
    "mlp_norm": "intermediate.LayerNorm",
    "mlp.Wo": "output.dense",
}
_OUTSIDE = {
    "model.embeddings.tok_embeddings": "bert.embeddings.word_embeddings",
    "model.embeddings.norm": "bert.embeddings.LayerNorm",
    "model.final_norm": "bert.final_norm",
    "head.dense": "bert.pooler.dense",
    "head.norm": "bert.pooler.LayerNorm",
    "classifier": "classifier",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig(ModelConfig):
    """Shape and labels of one ModernBERT sequence classifier.

    windows: for each layer how many tokens to each side a token sees; None: all. thetas: for each layer the
    base of its rotary angles.
    mlp_bias, norm_bias, head_bias: the checkpoint's other parts that have biases.
    """

    windows: tuple[int | None, ...]
    thetas: tuple[float, ...]
    mlp_bias: bool
    norm_bias: bool
    head_bias: bool

    def is_stored(self, name: str) -> bool:
        """Return whether checkpoints hold a tensor of the network; those that they do not hold are zeros."""
        module, _, part = name.rpartition(".")
        if part != "bias" or module == "classifier":
            return True
        if module.endswith("LayerNorm") or module == "bert.final_norm":
            return self.norm_bias
        if module == "bert.pooler.dense":
            return self.head_bias
        if self.int8:  # the effect of the inputs' offsets
            return True
        return self.attention_bias if ".attention." in module else self.mlp_bias


class ModernBertFamily:
    """The family ModernBERT, as the rest of the program sees it."""

    network = "modernbert"

    def shape(self, raw: Mapping[str, Any]) -> ModernBertConfig:
        """Return the network's shape, from a parsed config.json."""
        hidden, heads, layers = (
            positive_int(raw, name) for name in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        if hidden % (2 * heads):
            raise UnsupportedCheckpoint(
                f"config.json: hidden_size {hidden} is not an even multiple of num_attention_heads {heads}"
            )
        kinds = _kinds(raw, layers)
        thetas = _thetas(raw)
        window = _window(raw)
        pooling = raw.get("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            raise UnsupportedCheckpoint(
                f"config.json: classifier_pooling is {pooling!r}; supported: 'cls', 'mean'"
            )
        return ModernBertConfig(
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
            thetas=tuple(thetas[kind] for kind in kinds),
            pools_mean=pooling == "mean",
            attention_bias=_flag(raw, "attention_bias"),
            mlp_bias=_flag(raw, "mlp_bias"),
            norm_bias=_flag(raw, "norm_bias"),
            head_bias=_flag(raw, "classifier_bias"),
        )

    def of_layers(self, config: ModelConfig, layers: Sequence[int]) -> ModelConfig:
        """Return the shape of a network of only these layers, each with its own window and angles."""
        assert isinstance(config, ModernBertConfig)
        windows = tuple(config.windows[layer] for layer in layers)
        thetas = tuple(config.thetas[layer] for layer in layers)
        return replace(config, num_layers=len(layers), windows=windows, thetas=thetas)

    def check_removable(self, layers: Collection[int]) -> None:
        """Raise ModelError for layer 0, which alone has no norm before its attention."""
        if 0 in layers:
            raise ModelError(
                "layer 0 of a modernbert cannot be removed: the layer after it has a norm of its own, which "
                "the format does not allow in the first place"
            )

    def fields_of(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that say which layers there are, and how many units they have."""
        assert isinstance(config, ModernBertConfig)
        return {
            "num_hidden_layers": config.num_layers,
            "intermediate_size": config.intermediate_size,
            "layer_types": [GLOBAL if window is None else LOCAL for window in config.windows],
        }

    def expected(self, config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Return every float tensor of the network, under our names, with its shape."""
        hidden, labels = config.hidden_size, len(config.labels)
        yield "bert.embeddings.word_embeddings.weight", (config.vocab_size, hidden)
        for name in ("bert.embeddings.LayerNorm", "bert.final_norm", "bert.pooler.LayerNorm"):
            yield from _named(name, hidden)
        for number, (kept, inner) in enumerate(zip(config.kept_heads, config.widths, strict=True)):
            prefix, width = layer_prefix(number), len(kept) * config.head_size
            if number:  # the first layer reads the embeddings, which are normalised already
                yield from _named(f"{prefix}attention.LayerNorm", hidden)
            for name in _JOINED["attn.Wqkv"]:
                yield from _named(f"{prefix}{name}", width, hidden)
            yield from _named(f"{prefix}attention.output.dense", hidden, width)
            yield from _named(f"{prefix}intermediate.LayerNorm", hidden)
            for name in _JOINED["mlp.Wi"]:
                yield from _named(f"{prefix}{name}", inner, hidden)
            yield from _named(f"{prefix}output.dense", hidden, inner)
        yield from _named("bert.pooler.dense", hidden, hidden)
        yield from _named("classifier", labels, hidden)

    def ours(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return a checkpoint's tensors under our names, with zeros for biases that it does not have."""
        import torch

        found: dict[str, Tensor] = {}
        for whole_name, tensor in tensors.items():
            name, _, part = whole_name.rpartition(".")
            if not name.startswith(("model.", "head", "classifier", "decoder")):
                name = f"model.{name}"  # the encoder alone, as sentence-transformers writes it
            layer = _LAYER.fullmatch(name)
            prefix, inner = (layer_prefix(layer[1]), layer[2]) if layer else ("", name)
            if layer and inner in _JOINED and part.startswith("input_"):
                found[f"{prefix}{_OF_INPUT[inner]}.{part}"] = tensor
            elif layer and inner in _JOINED:
                pieces = tensor.chunk(len(_JOINED[inner]))
                found |= {
                    f"{prefix}{ours}.{part}": piece
                    for ours, piece in zip(_JOINED[inner], pieces, strict=True)
                }
            elif inner in (known := _IN_LAYER if layer else _OUTSIDE):
                found[f"{prefix}{known[inner]}.{part}"] = tensor
            elif name.startswith("model."):
                found[f"bert.{name.removeprefix('model.')}.{part}"] = tensor  # unknown: to be refused
        for name, shape in self.expected(config):
            if config.is_stored(name):
                continue
            if name in found:
                raise UnsupportedCheckpoint(
                    f"tensor {self.their_name(name)} does not belong to the network that config.json "
                    "describes"
                )
            found[name] = torch.zeros(shape)
        return found

    def theirs(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return our network's tensors as ModernBERT's checkpoints name and lay them out."""
        import torch

        joined: dict[str, list[Tensor]] = {}
        for name, tensor in tensors.items():
            if config.is_stored(name):
                joined.setdefault(self.their_name(name), []).append(tensor)
        return {name: torch.cat(parts) if parts[1:] else parts[0] for name, parts in joined.items()}

    def their_name(self, name: str) -> str:
        """Return the name, in a checkpoint, of one of our tensors; several of ours can have the same."""
        ours, _, part = name.rpartition(".")
        prefix = ""
        if layer := re.fullmatch(r"bert\.encoder\.layer\.(\d+)\.(.+)", ours):
            prefix, ours = f"model.layers.{layer[1]}.", layer[2]
        for theirs, several in _JOINED.items():
            if ours in several or (ours == _OF_INPUT[theirs] and part.startswith("input_")):
                return f"{prefix}{theirs}.{part}"
        for theirs, one in (_IN_LAYER if prefix else _OUTSIDE).items():
            if ours == one:
                return f"{prefix}{theirs}.{part}"
        return f"model.{name.removeprefix('bert.')}"


def _named(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def _flag(raw: Mapping[str, Any], name: str) -> bool:
    value = raw.get(name, False)
    if type(value) is not bool:
        raise UnsupportedCheckpoint(f"config.json: {name} is {value!r}; it must be true or false")
    return value


def _kinds(raw: Mapping[str, Any], layers: int) -> list[str]:
    """Return each layer's kind: `layer_types`, or every n-th layer global."""
    kinds = raw.get("layer_types")
    if kinds is None:
        step = positive_int(raw, "global_attn_every_n_layers", 3)
        return [LOCAL if number % step else GLOBAL for number in range(layers)]
    known = GLOBAL, LOCAL
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds):
        raise UnsupportedCheckpoint(
            f"config.json: layer_types must name {GLOBAL!r} or {LOCAL!r} for each of the {layers} layers"
        )
    return list(kinds)


def _window(raw: Mapping[str, Any]) -> int:
    """Return how many tokens to each side a token sees in a local layer."""
    if raw.get("sliding_window") is not None:  # wins over local_attention
        return positive_int(raw, "sliding_window")
    return positive_int(raw, "local_attention", 128) // 2


def _thetas(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the bases of the rotary angles: of `rope_parameters`, or of the fields of transformers 4."""
    if raw.get("rope_scaling") is not None:
        raise UnsupportedCheckpoint(
            "config.json: rope_scaling is set; only plain rotary positions are supported"
        )
    parameters = raw.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping) or not parameters.keys() <= THETAS.keys():
        raise UnsupportedCheckpoint(
            f"config.json: rope_parameters is {parameters!r}; it must have one object for each of {[*THETAS]}"
        )
    thetas: dict[str, float] = {}
    for kind, field in ((GLOBAL, "global_rope_theta"), (LOCAL, "local_rope_theta")):
        of_kind = parameters.get(kind) or {}
        plain = isinstance(of_kind, Mapping) and of_kind.get("rope_type", "default") == "default"
        if not plain or not of_kind.keys() <= _ROPE_FIELDS:
            raise UnsupportedCheckpoint(
                f"config.json: rope_parameters.{kind} is {of_kind!r}: it would need scaled angles; "
                "supported: rope_type 'default' with a rope_theta"
            )
        default = THETAS[kind]
        if kind == LOCAL and field in raw and raw[field] is None:
            default = thetas[GLOBAL]  # as transformers 4 reads null
        value = of_kind.get("rope_theta", raw.get(field))
        thetas[kind] = positive_float(default if value is None else value, field)
    return thetas
