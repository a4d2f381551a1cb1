"""Reads what sentence-transformers writes beside config.json: a classifier in modules of its own, a score's
activation, prompts.

A CrossEncoder is a list of modules, modules.json. Most have the module Transformer alone: a sequence
classifier as transformers writes it. Ettin rerankers have an encoder and the parts of its classifier after
it, each in a folder: Pooling, Dense, LayerNorm, Dense, as ModernBERT's own classifier computes them.
LayerNorm's bias is folded into the last map if config.json knows none. A decoder has LogitScore, the ids of
the tokens whose logits are the score. https://sbert.net/docs/cross_encoder/usage/custom_models.html

The settings of the module Transformer, its window and what it does to texts, stand in
sentence_bert_config.json, which older releases named after the architecture. TEI and vLLM read them too, also
where modules.json is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.checkpoint.fields import check, positive_int, read_json
from models.checkpoint.prompt import PUBLISHED
from models.errors import UnsupportedCheckpoint

if TYPE_CHECKING:
    from torch import Tensor

    from models.checkpoint.config import ModelConfig

LAYER_NORM_EPS = 1e-5
"""LayerNorm's epsilon in sentence-transformers."""

_HEAD = ["Pooling", "Dense", "LayerNorm", "Dense"]
_ACTIVATIONS = {
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "none",
}


def with_modules(directory: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json as it would be if the classifier stood in the checkpoint itself.

    Raises UnsupportedCheckpoint for modules or prompts that would not be computed.
    """
    file = directory / "config_sentence_transformers.json"
    if file.is_file():
        model = read_json(file)
        prompts, chosen = model.get("prompts") or {}, model.get("default_prompt_name")
        is_right = isinstance(prompts, Mapping) and isinstance(chosen, str | None)
        check(is_right, f"{file}: prompts must be an object, and default_prompt_name one of its names")
        prompt = prompts.get(chosen)
        if raw.get("model_type") in PUBLISHED and isinstance(prompt, str | None):
            raw = _with_ours(raw, instruction=prompt)
        else:
            check(not prompt, f"{file}: default_prompt_name: texts would need the prompt {prompt!r}")
        if model.get("activation_fn"):
            known = raw.get("sentence_transformers")
            known = known if isinstance(known, Mapping) else {}
            raw = raw | {"sentence_transformers": {**known, "activation_fn": model["activation_fn"]}}
    module_window(directory)
    match classifier_folders(directory):
        case [folder]:
            answers = read_json(folder / "config.json")
            ids = [answers.get("true_token_id"), answers.get("false_token_id")]
            return _with_ours(raw, score_tokens=[id_ for id_ in ids if id_ is not None])
        case [_, *_] as folders:
            return raw | _head_fields(folders, raw)
    return raw


def _with_ours(raw: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a config.json with more fields under `headroom`."""
    ours = raw.get("headroom")
    return {**raw, "headroom": {**(ours if isinstance(ours, Mapping) else {}), **fields}}


def classifier_folders(directory: Path) -> list[Path]:
    """Return the folders of the modules that are the classifier: LogitScore's, or those of Pooling, Dense,
    LayerNorm and Dense; none if the checkpoint itself holds it."""
    file = directory / "modules.json"
    if not file.is_file():
        return []
    try:
        modules = json.loads(file.read_text(encoding="utf-8"))
        steps = [(str(module["type"]), directory / str(module["path"])) for module in modules]
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise UnsupportedCheckpoint(f"{file} cannot be read: {error!r}") from None
    for _, folder in steps:
        is_inside = folder.is_relative_to(directory) and ".." not in folder.relative_to(directory).parts
        check(is_inside, f"{file}: the path {folder} leaves the checkpoint's directory")
    names = [kind.rsplit(".", 1)[-1] for kind, _ in steps]
    shown = f"{file}: the modules are {' → '.join(names)}"
    is_own = all(kind.startswith("sentence_transformers.") for kind, _ in steps)
    check(is_own, f"{shown}, and not all of them are sentence-transformers' own")
    computed = [(name, folder) for name, (_, folder) in zip(names, steps, strict=True) if name != "Dropout"]
    known = ["Transformer"], ["Transformer", "LogitScore"], ["Transformer", *_HEAD]
    is_known = [name for name, _ in computed] in known and computed[0][1] == directory
    supported = ", ".join(" → ".join(names) for names in known)
    check(is_known, f"{shown}; supported: {supported}")
    return [folder for _, folder in computed[1:]]


def head_tensors(
    directory: Path, config: ModelConfig, read: Callable[[Path], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Return the tensors of a classifier in modules under our names, if there is one.

    read: returns the tensors of a folder.
    """
    folders = classifier_folders(directory)
    if len(folders) != len(_HEAD):
        return {}
    dense, norm, last = map(read, folders[1:])
    for folder, part, name in zip(
        folders[1:], (dense, norm, last), ("linear", "norm", "linear"), strict=True
    ):
        for one in ("weight", "bias") if name == "norm" else ("weight",):
            check(f"{name}.{one}" in part, f"{folder}: tensor {name}.{one} is missing")
    tensors = {
        "bert.pooler.dense.weight": dense["linear.weight"],
        "bert.pooler.LayerNorm.weight": norm["norm.weight"],
        "classifier.weight": last["linear.weight"],
    }
    tensors |= {"bert.pooler.dense.bias": dense["linear.bias"]} if "linear.bias" in dense else {}
    bias = last.get("linear.bias")
    bias = tensors["classifier.weight"].new_zeros(len(config.labels)) if bias is None else bias
    if config.is_stored("bert.pooler.LayerNorm.bias"):
        tensors["bert.pooler.LayerNorm.bias"] = norm["norm.bias"]
    else:  # classifier(y + b) = classifier(y) + W·b
        bias = bias.double() + tensors["classifier.weight"].double() @ norm["norm.bias"].double()
    return tensors | {"classifier.bias": bias.float()}


def _head_fields(folders: Sequence[Path], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of config.json that say what a ModernBERT's classifier in modules computes."""
    family, epsilon = raw.get("model_type"), raw.get("norm_eps", LAYER_NORM_EPS)
    check(
        family == "modernbert" and epsilon == LAYER_NORM_EPS,
        f"{folders[2]}: LayerNorm has epsilon {LAYER_NORM_EPS}; supported: a modernbert with this norm_eps, "
        f"not a {family} with {epsilon}",
    )
    dense, last = (read_json(folders[index] / "config.json") for index in (1, 3))
    for folder, config in ((folders[1], dense), (folders[3], last)):
        check(not config.get("use_residual"), f"{folder}: use_residual is set; it is not supported")
    is_linear = _activation(folders[3], last) == "none"
    check(is_linear, f"{folders[3]}: activation_function is not Identity, which the last map must have")
    return {
        "num_labels": positive_int(last, "out_features"),
        "classifier_pooling": _pooling(folders[0]),
        "classifier_activation": _activation(folders[1], dense),
        "classifier_bias": bool(dense.get("bias", True)),
    }


def _pooling(folder: Path) -> str:
    """Return cls or mean, from a Pooling module of today or of releases with a flag for each mode."""
    config = read_json(folder / "config.json")
    flags = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    on = [flags.get(name, name) for name in config if name.startswith("pooling_mode_") and config[name]]
    modes = config.get("pooling_mode", on)
    modes = [modes] if isinstance(modes, str) else list(modes)
    check(modes in (["cls"], ["mean"]), f"{folder}: pooling_mode is {modes}; supported: 'cls', 'mean'")
    return str(modes[0])


def _activation(folder: Path, config: Mapping[str, Any]) -> str:
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    is_known = name in _ACTIVATIONS
    check(is_known, f"{folder}: activation_function is {name}; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""In the order in which sentence-transformers looks for them; the first that is not empty counts."""


def module_window(directory: Path) -> tuple[str, Any] | None:
    """Return the field that says how long a sequence may be, and its value; None without one.

    Raises UnsupportedCheckpoint for settings that would change how texts are read.
    """
    there = (file for name in FILES if (file := directory / name).is_file())
    file, settings = next(((file, found) for file in there if (found := read_json(file))), (directory, {}))
    for name in ("do_lower_case", "processing_kwargs"):
        is_prompt = settings.get(name) == {"chat_template": {"add_generation_prompt": True}}  # a decoder's
        is_right = not settings.get(name) or is_prompt
        check(is_right, f"{file}: {name} is set: texts would need to be read in another way")
    windows = [(f"{file}: max_seq_length", settings.get("max_seq_length"))]
    for name in ("tokenizer_args", "processor_kwargs"):  # the older name, and today's
        options = settings.get(name) or {}
        check(isinstance(options, dict), f"{file}: {name} is {options!r}, not an object")
        others = sorted(options.keys() - {"model_max_length", "trust_remote_code"})
        check(not others, f"{file}: {name} has {''.join(others[:1])}; only model_max_length is supported")
        windows.append((f"{file}: {name}.model_max_length", options.get("model_max_length")))
    return next((window for window in reversed(windows) if window[1] is not None), None)
