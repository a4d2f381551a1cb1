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
from models.checkpoint.prompt import PUBLISHED
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


@dataclass(frozen=True, slots=True)
class Answers:
    """The ids of the tokens whose logits are a decoder's score, the relevant one first."""

    tokens: list[Any]


def with_modules(directory: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json as it would be if the classifier stood in the checkpoint itself.

    Raises UnsupportedCheckpoint for modules or prompts that would not be computed.
    """
    file = directory / "config_sentence_transformers.json"
    if file.is_file():
        model = read_json(file)
        prompts, chosen = model.get("prompts") or {}, model.get("default_prompt_name")
        is_right = isinstance(prompts, Mapping) and isinstance(chosen, str | None)
        _need(is_right, f"{file}: prompts must be an object, and default_prompt_name one of its names")
        prompt = prompts.get(chosen)
        if raw.get("model_type") in PUBLISHED and isinstance(prompt, str | None):
            raw = _with_ours(raw, instruction=prompt)
        else:
            _need(not prompt, f"{file}: default_prompt_name: texts would need the prompt {prompt!r}")
        if model.get("activation_fn"):
            known = raw.get("sentence_transformers")
            known = known if isinstance(known, Mapping) else {}
            raw = raw | {"sentence_transformers": {**known, "activation_fn": model["activation_fn"]}}
    module_window(directory)
    head = read_head(directory)
    if isinstance(head, Answers):
        return _with_ours(raw, score_tokens=head.tokens)
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


def _with_ours(raw: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a config.json with more fields under `headroom`."""
    ours = raw.get("headroom")
    return {**raw, "headroom": {**(ours if isinstance(ours, Mapping) else {}), **fields}}


def read_head(directory: Path) -> Head | Answers | None:
    """Return the classifier that modules.json describes, or the answers that are one; None if the checkpoint
    itself holds it."""
    file = directory / "modules.json"
    if not file.is_file():
        return None
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
        steps = [(str(module["type"]), directory / str(module["path"])) for module in modules]
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise UnsupportedCheckpoint(f"{file} cannot be read: {error!r}") from None
    for _, folder in steps:
        is_inside = folder.is_relative_to(directory) and ".." not in folder.relative_to(directory).parts
        _need(is_inside, f"{file}: the path {folder} leaves the checkpoint's directory")
    names = [kind.rsplit(".", 1)[-1] for kind, _ in steps]
    shown = f"{file}: the modules are {' → '.join(names)}"
    is_own = all(kind.startswith("sentence_transformers.") for kind, _ in steps)
    _need(is_own, f"{shown}, and not all of them are sentence-transformers' own")
    computed = [(name, folder) for name, (_, folder) in zip(names, steps, strict=True) if name != "Dropout"]
    match computed:
        case [("Transformer", root)] if root == directory:
            return None
        case [("Transformer", root), ("LogitScore", folder)] if root == directory:
            found = read_json(folder / "config.json")
            ids = [found.get("true_token_id"), found.get("false_token_id")]
            return Answers([id_ for id_ in ids if id_ is not None])
        case [("Transformer", root), ("Pooling", pooling), ("Dense", dense), *norm, ("Dense", last)] if (
            root == directory and [name for name, _ in norm] in ([], ["LayerNorm"])
        ):
            return _head(pooling, dense, norm[0][1] if norm else None, last)
    raise UnsupportedCheckpoint(
        f"{shown}; supported: Transformer alone, Transformer → Pooling → Dense → LayerNorm → Dense, or "
        "Transformer → LogitScore"
    )


def head_tensors(
    head: Head, config: ModelConfig, read: Callable[[Path], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the tensors of a classifier in modules under our names. read: returns those of a folder."""
    import torch

    dense, last = read(head.dense), read(head.last)
    has_weights = "linear.weight" in dense and "linear.weight" in last
    _need(has_weights, f"{head.dense}, {head.last}: tensor linear.weight is missing")
    tensors = {
        "bert.pooler.dense.weight": dense["linear.weight"],
        "classifier.weight": last["linear.weight"],
        "classifier.bias": last.get("linear.bias", torch.zeros(head.labels)).float(),
    }
    if "linear.bias" in dense:
        tensors["bert.pooler.dense.bias"] = dense["linear.bias"]
    if head.norm is not None:
        norm = read(head.norm)
        is_whole = {"norm.weight", "norm.bias"} <= norm.keys()
        _need(is_whole, f"{head.norm}: tensor norm.weight or norm.bias is missing")
        tensors["bert.pooler.LayerNorm.weight"] = norm["norm.weight"]
        if config.is_stored("bert.pooler.LayerNorm.bias"):
            tensors["bert.pooler.LayerNorm.bias"] = norm["norm.bias"]
        else:  # classifier(y + b) = classifier(y) + W·b
            folded = tensors["classifier.weight"].double() @ norm["norm.bias"].double()
            tensors["classifier.bias"] = (tensors["classifier.bias"].double() + folded).float()
    return tensors


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
    differing = (
        f"{name} {theirs[name]!r}, not {ours[name]!r}" for name in ours if ours[name] != theirs[name]
    )
    file = head.dense.parent / "modules.json"
    _need(ours == theirs, f"{file}: not the classifier of {config.family}: {'; '.join(differing)}")


def _head(pooling: Path, dense: Path, norm: Path | None, last: Path) -> Head:
    of_dense, of_last = (read_json(folder / "config.json") for folder in (dense, last))
    for folder, config in ((dense, of_dense), (last, of_last)):
        _need(not config.get("use_residual"), f"{folder}: use_residual is set; it is not supported")
    is_linear = _activation(last, of_last) == "none"
    _need(is_linear, f"{last}: activation_function is not Identity, which the last map must have")
    bias = bool(of_dense.get("bias", True))
    labels = positive_int(of_last, "out_features")
    return Head(dense, norm, last, _pooling(pooling), _activation(dense, of_dense), bias, labels)


def _pooling(folder: Path) -> str:
    """Return cls or mean, from a Pooling module of today or of releases with a flag for each mode."""
    config = read_json(folder / "config.json")
    flags = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    on = [flags.get(name, name) for name in config if name.startswith("pooling_mode_") and config[name]]
    modes = config.get("pooling_mode", on)
    modes = [modes] if isinstance(modes, str) else list(modes)
    _need(modes in (["cls"], ["mean"]), f"{folder}: pooling_mode is {modes}; supported: 'cls', 'mean'")
    return str(modes[0])


def _activation(folder: Path, config: Mapping[str, Any]) -> str:
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    is_known = name in _ACTIVATIONS
    _need(is_known, f"{folder}: activation_function is {name}; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


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
    for name in ("do_lower_case", "processing_kwargs"):
        is_prompt = settings.get(name) == {"chat_template": {"add_generation_prompt": True}}  # a decoder's
        _need(
            not settings.get(name) or is_prompt,
            f"{file}: {name} is set: texts would need to be read in another way",
        )
    window: tuple[str, object] | None = None
    if settings.get("max_seq_length") is not None:
        window = f"{file}: max_seq_length", settings["max_seq_length"]
    for name in ("tokenizer_args", "processor_kwargs"):  # the older name, and today's
        options = settings.get(name) or {}
        _need(isinstance(options, dict), f"{file}: {name} is {options!r}, not an object")
        others = sorted(options.keys() - {"model_max_length", "trust_remote_code"})
        _need(not others, f"{file}: {name} has {''.join(others[:1])}; only model_max_length is supported")
        if options.get("model_max_length") is not None:
            window = f"{file}: {name}.model_max_length", options["model_max_length"]
    return window


def _need(is_right: bool, problem: str) -> None:
    if not is_right:
        raise UnsupportedCheckpoint(problem)
