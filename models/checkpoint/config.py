"""Reads and checks a checkpoint's config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import ModelError, UnsupportedCheckpoint
from models.head_mask import HeadMask

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
"""`hidden_act` in config.json → the name that `models.ops` uses."""

INT8_FORMAT = "w8a8-1"
"""`headroom.quantization.format` in config.json: the layout that `tensors.int8_tensors` describes."""

QUANTIZATION_CONFIG = {"quant_method": "headroom-w8a8"}
"""`quantization_config` of an int8 checkpoint: with it, transformers warns that it cannot read the file."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and labels of one BERT sequence classifier.

    kept_heads: for each layer the original numbers of the heads that the checkpoint still holds,
        ascending. Pruning removes numbers; the numbering of a mask never changes.
    labels: one name per logit, least relevant first; a single name is a one-label cross-encoder.
    label_order: the checkpoint's logit index of each entry of `labels`.
    temperature: logits are divided by it before the softmax (or the sigmoid); 1 means uncalibrated.
    int8: the layers' products have 8-bit weights and inputs (`headroom quantize` wrote the checkpoint).
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    type_vocab_size: int
    layer_norm_eps: float
    activation: str
    labels: tuple[str, ...]
    label_order: tuple[int, ...]
    kept_heads: tuple[tuple[int, ...], ...]
    temperature: float
    int8: bool = False

    @property
    def head_size(self) -> int:
        """Return the width of one head, d_model / h."""
        return self.hidden_size // self.num_heads

    @property
    def is_graded(self) -> bool:
        """Return False for a one-label cross-encoder, whose score is a sigmoid."""
        return len(self.labels) > 1


def read_config(directory: Path, label_order: Sequence[str] | None = None) -> ModelConfig:
    """Read `config.json` of a Hugging Face BERT sequence classifier.

    label_order: the label names from least to most relevant; default: the order given under
        `headroom.label_order` in the file, else by label id.
    Raises UnsupportedCheckpoint for anything that this network does not compute exactly.
    """
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsupportedCheckpoint(f"{path} does not exist") from None
    except (ValueError, OSError) as error:
        raise UnsupportedCheckpoint(f"{path} cannot be read: {error}") from None
    if not isinstance(raw, dict):
        raise UnsupportedCheckpoint(f"{path} is not a JSON object")
    return parse_config(raw, label_order)


def parse_config(raw: Mapping[str, Any], label_order: Sequence[str] | None = None) -> ModelConfig:
    """Check a config that is already parsed, as `read_config` does."""
    _refuse_other_architectures(raw)
    size = {
        name: _positive_int(raw, name, default)
        for name, default in (
            ("vocab_size", None),
            ("hidden_size", None),
            ("num_hidden_layers", None),
            ("num_attention_heads", None),
            ("intermediate_size", None),
            ("max_position_embeddings", 512),
            ("type_vocab_size", 2),
        )
    }
    if size["hidden_size"] % size["num_attention_heads"]:
        raise UnsupportedCheckpoint(
            f"config.json: hidden_size {size['hidden_size']} is not a multiple of "
            f"num_attention_heads {size['num_attention_heads']}"
        )
    if size["type_vocab_size"] < 2:
        raise UnsupportedCheckpoint(
            "config.json: type_vocab_size is 1; a query-title classifier needs two segments"
        )
    ours = raw.get("headroom") or {}
    if not isinstance(ours, Mapping):
        raise UnsupportedCheckpoint("config.json: headroom is not an object")
    labels, order = _labels(raw, label_order or ours.get("label_order"))
    return ModelConfig(
        vocab_size=size["vocab_size"],
        hidden_size=size["hidden_size"],
        num_layers=size["num_hidden_layers"],
        num_heads=size["num_attention_heads"],
        intermediate_size=size["intermediate_size"],
        max_positions=size["max_position_embeddings"],
        type_vocab_size=size["type_vocab_size"],
        layer_norm_eps=_positive_float(raw.get("layer_norm_eps", 1e-12), "layer_norm_eps"),
        activation=_activation(raw.get("hidden_act", "gelu")),
        labels=labels,
        label_order=order,
        kept_heads=_kept_heads(raw, size["num_hidden_layers"], size["num_attention_heads"]),
        temperature=_positive_float(ours.get("temperature", 1.0), "headroom.temperature"),
        int8=_is_int8(raw, ours),
    )


def read_stored_masks(directory: Path, config: ModelConfig) -> dict[str, HeadMask]:
    """Return a checkpoint's stored masks: files `masks/NAME.json` with a JSON form under "mask"."""
    masks = {}
    for file in sorted((directory / "masks").glob("*.json")):
        try:
            form = json.loads(file.read_text(encoding="utf-8"))["mask"]
            masks[file.stem] = HeadMask.parse(form, layers=config.num_layers, heads=config.num_heads)
        except (ValueError, KeyError, TypeError, ModelError) as error:
            raise UnsupportedCheckpoint(f"{file} does not hold a mask of this model: {error}") from None
    return masks


def _refuse_other_architectures(raw: Mapping[str, Any]) -> None:
    model_type = raw.get("model_type")
    if model_type != "bert":
        raise UnsupportedCheckpoint(f"config.json: model_type is {model_type!r}; only 'bert' is supported")
    position_type = raw.get("position_embedding_type", "absolute")
    if position_type != "absolute":
        raise UnsupportedCheckpoint(
            f"config.json: position_embedding_type is {position_type!r}; only 'absolute' is supported"
        )
    for flag in ("is_decoder", "add_cross_attention"):
        if raw.get(flag):
            raise UnsupportedCheckpoint(f"config.json: {flag} is set; only encoders are supported")
    if raw.get("problem_type") == "multi_label_classification":
        raise UnsupportedCheckpoint(
            "config.json: problem_type is 'multi_label_classification'; grades exclude each other"
        )


def _is_int8(raw: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Return whether the checkpoint is int8. Raises UnsupportedCheckpoint for any format but our own."""
    own, foreign = ours.get("quantization"), raw.get("quantization_config")
    if foreign and foreign != QUANTIZATION_CONFIG:
        raise UnsupportedCheckpoint("config.json: quantization_config is set; load an unquantized checkpoint")
    if own is None:
        if foreign:
            raise UnsupportedCheckpoint(
                "config.json: quantization_config is headroom's, but there is no headroom.quantization"
            )
        return False
    if not isinstance(own, Mapping) or own.get("format") != INT8_FORMAT:
        raise UnsupportedCheckpoint(
            f"config.json: headroom.quantization must be an object whose format is {INT8_FORMAT!r}"
        )
    return True


def _positive_int(raw: Mapping[str, Any], name: str, default: int | None) -> int:
    value = raw.get(name, default)
    if type(value) is not int or value < 1:
        raise UnsupportedCheckpoint(f"config.json: {name} is {value!r}; it must be a whole number ≥ 1")
    return value


def _positive_float(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UnsupportedCheckpoint(f"config.json: {name} is {value!r}; it must be a finite number > 0")
    return float(value)


def _activation(name: Any) -> str:
    if name not in ACTIVATIONS:
        raise UnsupportedCheckpoint(
            f"config.json: hidden_act is {name!r}; supported: {', '.join(sorted(ACTIVATIONS))}"
        )
    return ACTIVATIONS[name]


def _labels(raw: Mapping[str, Any], wanted: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    id2label = raw.get("id2label")
    if id2label is None:
        count = raw.get("num_labels", 2)  # as transformers assumes
        id2label = {str(i): f"LABEL_{i}" for i in range(count)} if type(count) is int else None
    if not isinstance(id2label, Mapping) or not id2label:
        raise UnsupportedCheckpoint("config.json: id2label must map label ids to names")
    try:
        by_id = {int(key): str(name) for key, name in id2label.items()}
    except (TypeError, ValueError):
        raise UnsupportedCheckpoint("config.json: id2label must map label ids to names") from None
    if sorted(by_id) != list(range(len(by_id))):
        raise UnsupportedCheckpoint("config.json: the ids in id2label must run from 0 without a gap")
    names = [by_id[i] for i in range(len(by_id))]
    if wanted is None:
        return tuple(names), tuple(range(len(names)))
    if isinstance(wanted, str) or sorted(wanted) != sorted(names) or len(set(names)) != len(names):
        raise UnsupportedCheckpoint(
            f"label order {list(wanted)} does not name each label of the checkpoint once: {names}"
        )
    return tuple(wanted), tuple(names.index(name) for name in wanted)


def _kept_heads(raw: Mapping[str, Any], layers: int, heads: int) -> tuple[tuple[int, ...], ...]:
    """Read `pruned_heads` as transformers 4 writes it: {"layer": [removed heads]}."""
    pruned = raw.get("pruned_heads") or {}
    if not isinstance(pruned, Mapping):
        raise UnsupportedCheckpoint("config.json: pruned_heads must map layers to lists of heads")
    gone: dict[int, set[int]] = {}
    for key, numbers in pruned.items():
        layer = int(key) if str(key).isdecimal() else -1
        if not 0 <= layer < layers or not isinstance(numbers, list):
            raise UnsupportedCheckpoint(
                f"config.json: pruned_heads names layer {key!r}; this model has layers 0 to {layers - 1}"
            )
        for number in numbers:
            if type(number) is not int or not 0 <= number < heads:
                raise UnsupportedCheckpoint(
                    f"config.json: pruned_heads names head {layer}.{number}; "
                    f"this model has heads 0 to {heads - 1}"
                )
        gone[layer] = set(numbers)
    return tuple(tuple(h for h in range(heads) if h not in gone.get(layer, ())) for layer in range(layers))
