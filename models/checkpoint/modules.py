"""Reads what sentence-transformers writes beside config.json: a classifier in modules of its own, a score's
activation, prompts.

A CrossEncoder is a list of modules, modules.json. Most have the module Transformer alone: a sequence
classifier as transformers writes it. Ettin rerankers have an encoder and the parts of its classifier after
it, each in a folder: Pooling, Dense, LayerNorm, Dense, as ModernBERT's own classifier computes them.
LayerNorm's bias is folded into the last map if config.json knows none. A decoder has LogitScore, the ids of
the tokens whose logits are the score. https://sbert.net/docs/cross_encoder/usage/custom_models.html

The settings of the module Transformer, its window and what it does to texts, stand in
sentence_bert_config.json. TEI and vLLM read them too, also where modules.json is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headroom.models import files
from headroom.models.checkpoint.fields import (
    Fields,
    check,
    positive_int,
    read_json,
    read_json_if_there,
    reading,
    window,
)
from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.checkpoint.prompt import PUBLISHED, is_language_model
from headroom.models.files import Json

if TYPE_CHECKING:
    from torch import Tensor

FILE = "sentence_bert_config.json"

_HEAD = ["Pooling", "Dense", "LayerNorm", "Dense"]
_ACTIVATIONS = {
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "none",
}


def with_modules(directory: Path, raw: Json) -> Json:
    """Return a config.json as it would be if the classifier stood in the checkpoint itself. Raises
    UnsupportedCheckpoint for modules or prompts that would not be computed."""
    file = directory / "config_sentence_transformers.json"
    model = read_json_if_there(file)
    ours = dict(raw.get("headroom") or {})
    with reading(file):
        prompt = (model.get("prompts") or {}).get(model.get("default_prompt_name"))
    if raw.get("model_type") not in list(PUBLISHED):
        check(not prompt, f"{file}: default_prompt_name: texts would need the prompt {prompt!r}")
    elif model:
        ours["instruction"] = prompt
    if model.get("activation_fn"):
        stored = raw.get("sentence_transformers") or {}
        raw = raw | {"sentence_transformers": {**stored, "activation_fn": model["activation_fn"]}}
    module_window(directory)
    folders = classifier_folders(directory)
    if raw.get("model_type") in list(PUBLISHED) and _reads_plain_pairs(directory, raw):
        ours.setdefault("prompt", "pair")
        check(not prompt, f"{file}: default_prompt_name: queries would need the prompt {prompt!r}")
    if len(folders) == 1:
        ids = read_json(folders[0] / "config.json")
        answers = ids.get("true_token_id"), ids.get("false_token_id")
        ours["score_tokens"] = [answer for answer in answers if answer is not None]
    elif folders:
        raw = raw | _head_fields(folders, raw)
    return raw | {"headroom": ours} if ours else raw


def classifier_folders(directory: Path) -> list[Path]:
    """Return the folders of the modules that are the classifier: LogitScore's, or those of Pooling, Dense,
    LayerNorm and Dense; none if the checkpoint itself holds it."""
    file = directory / "modules.json"
    if not file.is_file():
        return []
    with reading(file):
        modules = json.loads(files.read_text(file))
        kinds = [str(module["type"]) for module in modules]
        folders = [directory / Path(module["path"]).name for module in modules]  # none above the directory
    names = [re.sub(r"^sentence_transformers\.(.*\.)?", "", kind) for kind in kinds]
    computed = [(name, folder) for name, folder in zip(names, folders, strict=True) if name != "Dropout"]
    known = ["Transformer"], ["Transformer", "LogitScore"], ["Transformer", *_HEAD]
    supported = ", ".join(" → ".join(names) for names in known)
    is_known = [name for name, _ in computed] in known
    check(is_known, f"{file}: the modules are {' → '.join(names)}; supported: {supported}")
    return [folder for _, folder in computed[1:]]


def head_tensors(directory: Path, config: ModelConfig, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a classifier in modules under our names, if there is one. stored: all tensors of
    the checkpoint; a module's name begins with its folder's."""
    folders = classifier_folders(directory)
    if len(folders) != len(_HEAD):
        return {}
    _, dense, norm, last = (f"{folder.name}/" for folder in folders)
    for name in (f"{dense}linear.weight", f"{norm}norm.weight", f"{norm}norm.bias", f"{last}linear.weight"):
        check(name in stored, f"{directory}: tensor {name} is missing")
    weight = stored[f"{last}linear.weight"]
    norm_bias = stored[f"{norm}norm.bias"]
    bias = stored.get(f"{last}linear.bias", weight.new_zeros(len(config.labels)))
    tensors = {
        "bert.pooler.dense.weight": stored[f"{dense}linear.weight"],
        "bert.pooler.LayerNorm.weight": stored[f"{norm}norm.weight"],
        "classifier.weight": weight,
    }
    if f"{dense}linear.bias" in stored:
        tensors["bert.pooler.dense.bias"] = stored[f"{dense}linear.bias"]
    if config.is_stored("bert.pooler.LayerNorm.bias"):
        tensors["bert.pooler.LayerNorm.bias"] = norm_bias
    else:  # classifier(y + b) = classifier(y) + W·b
        bias = bias.double() + weight.double() @ norm_bias.double()
    return tensors | {"classifier.bias": bias.float()}


def _head_fields(folders: Sequence[Path], raw: Fields) -> Json:
    """Return the fields of config.json that say what a ModernBERT's classifier in modules computes."""
    is_right = raw.get("model_type") == "modernbert" and raw.get("norm_eps", 1e-5) == 1e-5
    check(is_right, f"{folders[2]}: LayerNorm has epsilon 1e-05; supported: a modernbert with this norm_eps")
    pooling, dense, last = (read_json(folders[index] / "config.json") for index in (0, 1, 3))
    activations = []
    for folder, config in ((folders[1], dense), (folders[3], last)):
        check(not config.get("use_residual"), f"{folder}: use_residual is set; it is not supported")
        name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
        known = ", ".join(_ACTIVATIONS)
        check(name in _ACTIVATIONS, f"{folder}: activation_function is {name}; supported: {known}")
        activations.append(_ACTIVATIONS[name])
    is_linear = activations[1] == "none"
    check(is_linear, f"{folders[3]}: activation_function is not Identity, which the last map must have")
    flags = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}  # of earlier releases
    on = [flags.get(name, name) for name in pooling if name.startswith("pooling_mode_") and pooling[name]]
    modes = pooling.get("pooling_mode", on)
    modes = [modes] if isinstance(modes, str) else modes
    check(modes in (["cls"], ["mean"]), f"{folders[0]}: pooling_mode is {modes}; supported: 'cls', 'mean'")
    return {
        "architectures": ["ModernBertForSequenceClassification"],
        "num_labels": positive_int(last, "out_features", maximum=10_000),
        "classifier_pooling": modes[0],
        "classifier_activation": activations[0],
        "classifier_bias": bool(dense.get("bias", True)),
    }


def _reads_plain_pairs(directory: Path, raw: Fields) -> bool:
    """Return whether sentence-transformers gives a decoder query and title without a chat template: its
    module Transformer is a classifier alone, and does not take messages."""
    is_alone = (directory / "modules.json").is_file() and not classifier_folders(directory)
    takes_messages = "message" in (_settings(directory).get("modality_config") or {})
    return is_alone and not is_language_model(raw) and not takes_messages


def adds_generation_prompt(directory: Path) -> bool:
    """Return whether a chat template is to end with the beginning of an answer: as sentence-transformers'
    settings say, or without them, as for a language model."""
    if not (directory / FILE).is_file():
        return True
    options = _settings(directory).get("processing_kwargs") or {}
    return bool((options.get("chat_template") or {}).get("add_generation_prompt", False))


def _settings(directory: Path) -> Json:
    """Return the settings of the module Transformer."""
    return read_json_if_there(directory / FILE)


def module_window(directory: Path) -> int | None:
    """Return how many tokens a sequence may have; None if the module Transformer does not say it. Raises
    UnsupportedCheckpoint for settings that would change how texts are read."""
    file = directory / FILE
    settings = _settings(directory)
    of_decoders = {"chat_template": {"add_generation_prompt": True}}
    for name in ("do_lower_case", "processing_kwargs"):
        is_right = settings.get(name) in (None, False, {}, of_decoders)
        check(is_right, f"{file}: {name} is set: texts would need to be read in another way")
    longest = window(settings.get("max_seq_length"), file, "max_seq_length")
    for name in ("tokenizer_args", "processor_kwargs"):  # the older name, and today's
        options = settings.get(name) or {}
        check(isinstance(options, dict), f"{file}: {name} is {options!r}; it must be an object")
        others = sorted(options.keys() - {"model_max_length", "trust_remote_code"})
        check(not others, f"{file}: {name} has {''.join(others[:1])}; only model_max_length is supported")
        longest = window(options.get("model_max_length"), file, f"{name}.model_max_length") or longest
    return longest
