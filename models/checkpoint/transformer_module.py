"""Reads the settings of sentence-transformers' module Transformer: its window, and what it does to texts.

They stand in sentence_bert_config.json, which older releases named after the architecture. The text embedding
servers TEI and vLLM read them too, also where modules.json is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.checkpoint.fields import read_json
from models.errors import UnsupportedCheckpoint

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
