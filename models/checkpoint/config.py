"""Reads and checks a checkpoint's config.json."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headroom.models.checkpoint.families import FAMILIES, family_of
from headroom.models.checkpoint.fields import (
    Fields,
    check,
    finite_floats,
    need,
    positive_float,
    positive_int,
    read_json,
    reading,
)
from headroom.models.checkpoint.files import bytes_of_weights, check_files, weights_of
from headroom.models.checkpoint.label_names import order_by_name
from headroom.models.checkpoint.model_config import ModelConfig, NumbersByLayer, Rope, ScoreActivation
from headroom.models.checkpoint.modules import with_modules
from headroom.models.checkpoint.prompt import with_answers
from headroom.models.checkpoint.shapes import stored_shapes
from headroom.models.errors import InvalidMask, UnsupportedCheckpoint
from headroom.models.files import Json
from headroom.models.masks.grammar import is_file
from headroom.models.masks.head_mask import HeadMask

__all__ = [
    "INT8_FORMAT",
    "QUANTIZATION_CONFIG",
    "ModelConfig",
    "Rope",
    "check_holds_floats",
    "parse_config",
    "read_config",
    "read_raw",
    "read_stored_masks",
]

INT8_FORMAT = "w8a8-1"
"""`headroom.quantization.format` in config.json: the layout that `shapes.int8_shapes` describes."""

QUANTIZATION_CONFIG = {"quant_method": "headroom-w8a8"}
"""`quantization_config` of an int8 checkpoint: with it, transformers warns that it cannot read the file."""

_ROTARY_NUMBERS = 1 << 26
"""Limit on the numbers of a table of rotary angles, positions times the size of a head; published models have
up to 131,072 times 128."""

_DISTANCE_NUMBERS = 1 << 24
"""A DeBERTa's tables of distances may always have this many numbers, however small its weights are."""


def read_config(directory: Path, label_order: Sequence[str] | None = None) -> ModelConfig:
    """Read `config.json` of a Hugging Face sequence classifier.

    label_order: the label names from least to most relevant; default: the order given under
        `headroom.label_order` in the file, else the one that the names say (`label_names`), else by label id.
    Raises UnsupportedCheckpoint for anything that our networks do not compute exactly, for files that are not
    regular ones, and for sizes that the weights do not have.
    """
    check_files(directory)
    config = parse_config(read_raw(directory), label_order)
    stored_bytes = bytes_of_weights(directory)
    parameters = sum(math.prod(shape) for _, shape in stored_shapes(config))
    check(
        not stored_bytes or parameters <= stored_bytes,  # a number takes a byte or more
        f"{directory}: the weights cannot be read: {', '.join(file.name for file in weights_of(directory))} "
        f"has {stored_bytes:,} bytes, and config.json describes {parameters:,} parameters",
    )
    tables = _numbers_of_distances(config)
    check(
        not stored_bytes or tables <= max(stored_bytes, _DISTANCE_NUMBERS),
        f"{directory}: with these position_buckets its layers would hold {tables:,} numbers of distances, "
        f"which is too much for weights of {stored_bytes:,} bytes",
    )
    return config


def read_raw(directory: Path) -> Json:
    """Return the content of `config.json`, with what other files of sentence-transformers say, and the ids
    of a language model's answers."""
    file = directory / "config.json"
    with reading(file):
        return with_answers(directory, with_modules(directory, read_json(file)))


@reading("config.json")
def parse_config(raw: Fields, label_order: Sequence[str] | None = None) -> ModelConfig:
    """Return the configuration that a parsed config.json describes, checked.

    label_order: the labels, least relevant first. Raises UnsupportedCheckpoint with the field that is wrong.
    """
    name = family_of(raw)
    family = FAMILIES[name]
    shape = family.shape(raw)
    ours = raw.get("headroom") or {}
    if shape.decoder is not None and shape.decoder.vocabulary is not None:  # a language model has no labels
        raw = {**raw, "id2label": {"0": "LABEL_0"}, "num_labels": 1}
    labels, order, is_order_known = _labels(
        raw, label_order or ours.get("label_order"), family.default_labels
    )
    angles = shape.max_positions * shape.head_size
    wanted = f"times the {shape.head_size:,} numbers of a head it must be at most {_ROTARY_NUMBERS:,}"
    is_right = not shape.ropes or angles <= _ROTARY_NUMBERS
    need(is_right, "max_position_embeddings", shape.max_positions, wanted)
    kind = raw.get("problem_type")
    is_supported = kind != "multi_label_classification" and (kind != "regression" or len(labels) == 1)
    need(is_supported, "problem_type", kind, "supported are grades that exclude each other, or one label")
    return replace(
        shape,
        family=name,
        labels=labels,
        label_order=order,
        is_order_known=is_order_known,
        kept_heads=_kept_heads(raw, shape),
        widths=_widths(ours.get("intermediate_sizes"), shape),
        temperature=positive_float(ours.get("temperature", 1.0), "headroom.temperature"),
        bias=_bias(ours.get("bias"), order),
        score_activation="softmax" if len(labels) > 1 else _score_activation(raw, shape),
        int8=_is_int8(ours.get("quantization"), raw.get("quantization_config")),
    )


def read_stored_masks(directory: Path, config: ModelConfig) -> dict[str, HeadMask]:
    """Return a checkpoint's stored masks: files `masks/NAME.json` with a spec or a JSON form under "mask".

    Raises UnsupportedCheckpoint for one that is no mask, or was made for a model of another shape.
    """
    masks: dict[str, HeadMask] = {}
    for file in sorted((directory / "masks").glob("*.json")):
        content = read_json(file)
        check(
            is_file(content),
            f"{file} does not hold a mask of this model: its spec or form belongs under `mask`",
        )
        try:
            masks[file.stem] = config.parse_mask(content, {})
        except InvalidMask as error:
            raise UnsupportedCheckpoint(f"{file} does not hold a mask of this model: {error}") from None
    return masks


def check_holds_floats(source: Path, config: ModelConfig) -> None:
    """Raise UnsupportedCheckpoint if the checkpoint is int8, and so can be neither trained nor quantized."""
    problem = f"{source} is int8, and 8-bit weights cannot be trained or quantized again; name the float "
    check(not config.int8, f"{problem}checkpoint that it was made from")


def _numbers_of_distances(config: ModelConfig) -> int:
    """Return how many numbers a DeBERTa's layers hold for distances: keys and queries of each row of the
    table that they share, which no file holds."""
    if config.distances is None:
        return 0
    rows = 2 * config.distances[0]
    return sum(2 * rows * config.projected(layer)[0] for layer in range(config.num_layers))


def _kept_heads(raw: Fields, shape: ModelConfig) -> NumbersByLayer:
    """Return the heads of each layer that `pruned_heads`, as transformers 4 writes it, does not name."""
    pruned = {int(layer): heads for layer, heads in (raw.get("pruned_heads") or {}).items()}
    heads = {head for of_layer in pruned.values() for head in of_layer}
    is_right = pruned.keys() <= set(range(shape.num_layers)) and heads <= set(range(shape.num_heads))
    wanted = f"its layers must be 0 to {shape.num_layers - 1}, and their heads 0 to {shape.num_heads - 1}"
    need(is_right, "pruned_heads", raw.get("pruned_heads"), wanted)
    return tuple(
        tuple(head for head in range(shape.num_heads) if head not in pruned.get(layer, ()))
        for layer in range(shape.num_layers)
    )


def _widths(sizes: Any, shape: ModelConfig) -> tuple[int, ...]:
    """Return the units of each layer. sizes: `headroom.intermediate_sizes`; None if all layers have equally
    many."""
    maximum = shape.intermediate_size
    widths = tuple(sizes or [maximum] * shape.num_layers)
    is_right = len(widths) == shape.num_layers and all(type(n) is int and 0 < n <= maximum for n in widths)
    wanted = f"it must hold a number from 1 to {maximum} for each layer"
    need(is_right, "headroom.intermediate_sizes", sizes, wanted)
    return widths


def _bias(stored: Any, order: Sequence[int]) -> tuple[float, ...]:
    """Return what is added to calibrated logits, least relevant first. stored: `headroom.bias`, one number
    per label id; None: nothing is added. order: the id of each label."""
    if stored is None:
        return (0.0,)
    by_id = finite_floats(stored, "headroom.bias", len(order))
    return tuple(by_id[label] for label in order)


def _is_int8(ours: Any, foreign: Any) -> bool:
    """Return whether weights are int8, as `headroom.quantization` says. foreign: `quantization_config`."""
    is_plain = not foreign or (ours and foreign == QUANTIZATION_CONFIG)
    need(is_plain, "quantization_config", foreign, "load an unquantized checkpoint")
    is_known = ours is None or (isinstance(ours, Mapping) and ours.get("format") == INT8_FORMAT)
    need(is_known, "headroom.quantization", ours, f"it must be an object whose format is {INT8_FORMAT!r}")
    return ours is not None


def _score_activation(raw: Fields, shape: ModelConfig) -> ScoreActivation:
    """Return the activation of a one-label model's score, which sentence-transformers stores; its default is
    the sigmoid. Of two answers, the score is the probability of the relevant one, whatever is stored."""
    if shape.decoder is not None and len(shape.decoder.answers) == 2:
        return "sigmoid"
    stored = {
        "sentence_transformers.activation_fn": (raw.get("sentence_transformers") or {}).get("activation_fn"),
        "sbert_ce_default_activation_function": raw.get("sbert_ce_default_activation_function"),  # before 4
    }
    for field, name in stored.items():
        if name is not None:
            known = re.fullmatch(r"torch\.nn\.(?:\w+\.)*(Sigmoid|Identity)", name)
            need(known, field, name, "supported: torch.nn.Sigmoid and torch.nn.Identity")
            return "identity" if name.endswith("Identity") else "sigmoid"
    return "sigmoid"


def classifier_fields(raw: Fields, labels: Sequence[str]) -> Json:
    """Return the fields of config.json of a new classifier with these labels, least relevant first.

    raw: of the checkpoint that it is made of, whose kind of network, problem and activation it does not keep.
    """
    fields: Json = {
        "architectures": [
            re.sub(r"(Model|For[A-Z]\w*)$", "ForSequenceClassification", name)
            for name in raw.get("architectures") or ()
        ],
        "id2label": dict(enumerate(labels)),
        "label2id": {name: grade for grade, name in enumerate(labels)},
        "num_labels": len(labels),
        "problem_type": None,  # it may have been a regression
    }
    if "sentence_transformers" in raw:
        fields["sentence_transformers"] = {**(raw["sentence_transformers"] or {}), "activation_fn": None}
    if "sbert_ce_default_activation_function" in raw:
        fields["sbert_ce_default_activation_function"] = None
    return fields


def _label_names(raw: Fields, default: int) -> list[str]:
    """Return the names of the labels in the checkpoint's order. default: their number if it is not said."""
    id2label = raw.get("id2label")
    is_right = id2label is None or (
        isinstance(id2label, dict) and all(str(id_).isdecimal() for id_ in id2label)
    )
    need(is_right, "id2label", id2label, "it must be an object with a label for each id from 0")
    count = None if raw.get("num_labels") is None else positive_int(raw, "num_labels", maximum=10_000)
    if id2label is None or count not in (None, len(id2label)):
        id2label = {i: f"LABEL_{i}" for i in range(count or default)}  # as transformers does
    by_id = {int(key): str(name) for key, name in id2label.items()}
    return [by_id[id_] for id_ in sorted(by_id)]


def _labels(
    raw: Fields, wanted: Sequence[str] | None, default: int
) -> tuple[tuple[str, ...], tuple[int, ...], bool]:
    """Return the names of the labels, least relevant first, the checkpoint's index of each, and whether this
    order is known. wanted: that order. default: their number if config.json does not say it."""
    names = _label_names(raw, default)
    if wanted is None:
        order = order_by_name(names)
        is_known = order is not None or len(names) == 1
        order = order or tuple(range(len(names)))
        return tuple(names[index] for index in order), order, is_known
    if wanted in (names, tuple(names)):
        return tuple(names), tuple(range(len(names))), True
    is_right = isinstance(wanted, list | tuple) and len(wanted) == len(names)
    is_right = is_right and sorted(map(str, wanted)) == sorted(set(names))
    check(is_right, f"label order {wanted!r} does not name each label of the checkpoint once: {names}")
    return tuple(wanted), tuple(names.index(name) for name in wanted), True
