"""Options in tokenizer_config.json: a tokenizer's class, and how it truncates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.checkpoint.config import ModelConfig
from models.checkpoint.fields import read_json
from models.errors import UnsupportedCheckpoint

FILE = "tokenizer_config.json"

_DEFAULT_CLASS = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}


def read_options(directory: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, empty if there is none.

    Raises UnsupportedCheckpoint if the file is not a JSON object or asks for truncation on the left.
    """
    file = directory / FILE
    options = read_json(file) if file.is_file() else {}
    side = options.get("truncation_side", "right")
    if side != "right":
        raise UnsupportedCheckpoint(
            f"{file}: truncation_side is {side!r}: it would need a reader that keeps the ends of long "
            "texts; only 'right' is supported"
        )
    return options


def tokenizer_class(directory: Path, options: dict[str, Any]) -> str:
    """Return the class of the tokenizer without "Fast", found as AutoTokenizer finds it.

    tokenizer_config.json names it, or else config.json does, or its model_type tells.
    """
    file = directory / "config.json"
    config = read_json(file) if file.is_file() else {}
    name = options.get("tokenizer_class") or config.get("tokenizer_class")
    if name:
        return str(name).removesuffix("Fast")
    return _DEFAULT_CLASS.get(str(config.get("model_type")), "BertTokenizer")


def read_window(directory: Path, config: ModelConfig) -> int:
    """Return the longest sequence in tokens: model_max_length, or the network's positions if they are fewer.

    transformers truncates there. Raises UnsupportedCheckpoint if it is no number ≥ 1.
    """
    length = read_options(directory).get("model_max_length")
    if length is None:
        return config.max_positions
    if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 1:
        raise UnsupportedCheckpoint(
            f"{directory / FILE}: model_max_length is {length!r}; it must be a number of tokens ≥ 1"
        )
    return int(min(length, config.max_positions))  # transformers writes 1e30 for a tokenizer without a limit
