"""Reads what sentence-transformers writes beside config.json: a classifier in modules of its own, a score's
activation, prompts.

A CrossEncoder is a list of modules, modules.json. Most have the module Transformer alone: a sequence
classifier as transformers writes it. The Ettin rerankers and others have an encoder and the parts of its
classifier after it, each in a folder: Pooling, Dense, LayerNorm, Dense. They load if the family's own
classifier computes the same. LayerNorm's bias is folded into the last map if the family has no such bias.
https://sbert.net/docs/cross_encoder/usage/custom_models.html

The settings of the module Transformer, its window and what it does to texts, stand in
sentence_bert_config.json, which older releases named after the architecture. TEI and vLLM read them too, also
where modules.json is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.checkpoint.fields import positive_int, read_json
from models.errors import UnsupportedCheckpoint

if TYPE_CHECKING:
    from torch import Tensor

    from models.checkpoint.config import ModelConfig

LAYER_NORM_EPS = 1e-5
"""LayerNorm's epsilon in sentence-transformers."""

_ACTIVATIONS = {
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "none",
}


@dataclass(frozen=True, slots=True)
class Head:
    """A classifier in modules: the folders of its parts.

    pooling: cls or mean. activation, bias: of the dense layer. norm: None without one. labels: how many the
    last map has.
    """

    dense: Path
    norm: Path | None
    last: Path
    pooling: str
    activation: str
    bias: bool
    labels: int


def with_modules(directory: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json as it would be if the classifier stood in the checkpoint itself.

    Raises UnsupportedCheckpoint for modules or prompts that would not be computed.
    """
    file = directory / "config_sentence_transformers.json"
    if file.is_file():
        model = read_json(file)
        prompts, chosen = model.get("prompts") or {}, model.get("default_prompt_name")
        if not isinstance(prompts, Mapping) or not isinstance(chosen, str | None):
            raise UnsupportedCheckpoint(
                f"{file}: prompts must be an object, and default_prompt_name one of its names"
            )
        if prompt := prompts.get(chosen):
            raise UnsupportedCheckpoint(
                f"{file}: default_prompt_name: texts would need the prompt {prompt!r}"
            )
        if model.get("activation_fn"):
            known = raw.get("sentence_transformers") or {}
            if not isinstance(known, Mapping):
                raise UnsupportedCheckpoint(f"config.json: sentence_transformers is {known!r}, not an object")
            raw = raw | {"sentence_transformers": {**known, "activation_fn": model["activation_fn"]}}
    module_window(directory)
    head = read_head(directory)
    if head is None:
        return raw
    raw = {name: value for name, value in raw.items() if name != "num_labels"}  # the head has its own
    if len(raw.get("id2label") or ()) != head.labels:
        names = {str(number): f"LABEL_{number}" for number in range(head.labels)}
        raw = raw | {"id2label": names, "label2id": {name: int(number) for number, name in names.items()}}
    return raw | {
        "classifier_pooling": head.pooling,
        "classifier_activation": head.activation,
        "classifier_bias": head.bias,
    }


def read_head(directory: Path) -> Head | None:
    """Return the classifier that modules.json describes; None if the checkpoint itself holds it."""
    file = directory / "modules.json"
    if not file.is_file():
        return None
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
        kinds = [str(module["type"]) for module in modules]
        folders = [directory / str(module["path"]) for module in modules]
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise UnsupportedCheckpoint(f"{file} cannot be read: {error!r}") from None
    if outside := next((folder for folder in folders if not _is_inside(folder, directory)), None):
        raise UnsupportedCheckpoint(f"{file}: the path {outside} leaves the checkpoint's directory")
    names = [kind.rsplit(".", 1)[-1] for kind in kinds]
    shown = f"{file}: the modules are {' → '.join(names)}"
    if not all(kind.startswith("sentence_transformers.") for kind in kinds):
        raise UnsupportedCheckpoint(f"{shown}, and not all of them are sentence-transformers' own")
    steps = [
        step for step in zip(names, folders, strict=True) if step[0] != "Dropout"
    ]  # nothing in inference
    if [name for name, _ in steps] == ["Transformer"] and steps[0][1] == directory:
        return None
    match steps:
        case [("Transformer", root), ("Pooling", pooling), ("Dense", dense), *norm, ("Dense", last)] if (
            root == directory and [name for name, _ in norm] in ([], ["LayerNorm"])
        ):
            return _head(pooling, dense, norm[0][1] if norm else None, last)
    raise UnsupportedCheckpoint(
        f"{shown}; supported: Transformer alone, or Transformer → Pooling → Dense → LayerNorm → Dense"
    )


def head_tensors(
    head: Head, config: ModelConfig, read: Callable[[Path], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the tensors of a classifier in modules under our names. read: returns those of a folder."""
    import torch

    dense, last = read(head.dense), read(head.last)
    if "linear.weight" not in dense or "linear.weight" not in last:
        raise UnsupportedCheckpoint(f"{head.dense}, {head.last}: tensor linear.weight is missing")
    zeros = torch.zeros(head.labels)
    tensors = {
        "bert.pooler.dense.weight": dense["linear.weight"],
        "classifier.weight": last["linear.weight"],
        "classifier.bias": last.get("linear.bias", zeros).float(),
    }
    if "linear.bias" in dense:
        tensors["bert.pooler.dense.bias"] = dense["linear.bias"]
    if head.norm is not None:
        norm = read(head.norm)
        if not {"norm.weight", "norm.bias"} <= norm.keys():
            raise UnsupportedCheckpoint(f"{head.norm}: tensor norm.weight or norm.bias is missing")
        tensors["bert.pooler.LayerNorm.weight"] = norm["norm.weight"]
        if config.is_stored("bert.pooler.LayerNorm.bias"):
            tensors["bert.pooler.LayerNorm.bias"] = norm["norm.bias"]
        else:  # classifier(y + b) = classifier(y) + W·b
            folded = tensors["classifier.weight"].double() @ norm["norm.bias"].double()
            tensors["classifier.bias"] = (tensors["classifier.bias"].double() + folded).float()
    return tensors


def _head(pooling: Path, dense: Path, norm: Path | None, last: Path) -> Head:
    of_dense, of_last = (read_json(folder / "config.json") for folder in (dense, last))
    for folder, config in ((dense, of_dense), (last, of_last)):
        if config.get("use_residual"):
            raise UnsupportedCheckpoint(
                f"{folder}: use_residual is set; maps without a residual are supported"
            )
    if _activation(last, of_last) != "none":
        raise UnsupportedCheckpoint(
            f"{last}: activation_function is not Identity, which the last map must have"
        )
    return Head(
        dense,
        norm,
        last,
        _pooling(pooling),
        _activation(dense, of_dense),
        bool(of_dense.get("bias", True)),
        positive_int(of_last, "out_features"),
    )


def _is_inside(folder: Path, directory: Path) -> bool:
    return folder.is_relative_to(directory) and ".." not in folder.relative_to(directory).parts


def _pooling(folder: Path) -> str:
    """Return cls or mean, from a Pooling module of today or of releases with a flag for each mode."""
    config = read_json(folder / "config.json")
    modes = config.get("pooling_mode")
    if modes is None:
        flags = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
        on = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
        modes = [next((mode for mode, flag in flags.items() if flag == name), name) for name in on]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if modes not in (["cls"], ["mean"]):
        raise UnsupportedCheckpoint(f"{folder}: pooling_mode is {modes}; supported: 'cls', 'mean'")
    return str(modes[0])


def _activation(folder: Path, config: Mapping[str, Any]) -> str:
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise UnsupportedCheckpoint(
            f"{folder}: activation_function is {name}; supported: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def check_head(head: Head, config: ModelConfig, *, has_norm: bool) -> None:
    """Raise UnsupportedCheckpoint unless the family's own classifier computes what the modules do.

    config: of `with_modules`. has_norm: the family's classifier has a LayerNorm after its dense layer.
    """
    ours = {
        "pooling": "mean" if config.pools_mean else "cls",
        "activation": config.head_activation,
        "bias": config.is_stored("bert.pooler.dense.bias"),
        "LayerNorm": f"epsilon {config.layer_norm_eps}" if has_norm else "none",
    }
    theirs = {
        "pooling": head.pooling,
        "activation": head.activation,
        "bias": head.bias,
        "LayerNorm": "none" if head.norm is None else f"epsilon {LAYER_NORM_EPS}",
    }
    if ours != theirs:
        words = "; ".join(
            f"{name} {theirs[name]!r}, not {ours[name]!r}" for name in ours if ours[name] != theirs[name]
        )
        raise UnsupportedCheckpoint(
            f"{head.dense.parent / 'modules.json'}: not the classifier of {config.family}: {words}"
        )


FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""In the order in which sentence-transformers looks for them; the first that is not empty counts."""


def module_window(directory: Path) -> tuple[str, object] | None:
    """Return the field that says how long a sequence may be, and its value; None without one.

    Raises UnsupportedCheckpoint for settings that would change how texts are read.
    """
    for file in (directory / name for name in FILES):
        if file.is_file() and (settings := read_json(file)):
            return _checked(file, settings)
    return None


def _checked(file: Path, settings: dict[str, Any]) -> tuple[str, object] | None:
    if settings.get("do_lower_case"):
        raise UnsupportedCheckpoint(
            f"{file}: do_lower_case is set: texts would need to be lower-cased before they are tokenized"
        )
    window: tuple[str, object] | None = None
    if settings.get("max_seq_length") is not None:
        window = f"{file}: max_seq_length", settings["max_seq_length"]
    for name in ("tokenizer_args", "processor_kwargs"):  # the older name, and today's
        options = settings.get(name) or {}
        if not isinstance(options, dict):
            raise UnsupportedCheckpoint(f"{file}: {name} is {options!r}, not an object")
        others = sorted(options.keys() - {"model_max_length", "trust_remote_code"})
        if others:
            raise UnsupportedCheckpoint(f"{file}: {name} has {others[0]}; only model_max_length is supported")
        if options.get("model_max_length") is not None:
            window = f"{file}: {name}.model_max_length", options["model_max_length"]
    if settings.get("processing_kwargs"):
        raise UnsupportedCheckpoint(
            f"{file}: processing_kwargs is set: texts would need other options of the tokenizer"
        )
    return window
