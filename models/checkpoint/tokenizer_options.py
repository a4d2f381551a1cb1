"""Options in tokenizer_config.json: a tokenizer's class, and how it truncates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.checkpoint.config import ModelConfig
from models.checkpoint.fields import read_json
from models.checkpoint.transformer_module import module_window
from models.errors import UnsupportedCheckpoint

FILE = "tokenizer_config.json"

_DEFAULT_CLASS = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}


def read_options(directory: Path) -> dict[str, Any]:
    """Return the content of tokenizer_config.json, empty if there is none.

    Without added_tokens_decoder in it, special_tokens_map.json counts too, as in transformers.
    Raises UnsupportedCheckpoint if a file is not a JSON object or asks for truncation on the left.
    """
    file, older = directory / FILE, directory / "special_tokens_map.json"
    options = read_json(file) if file.is_file() else {}
    if "added_tokens_decoder" not in options and older.is_file():
        options |= read_json(older)
    check_side(options.get("truncation_side", "right"), f"{file}: truncation_side")
    return options


def check_side(side: object, name: str) -> None:
    """Refuse to truncate on the left. name: of the field that asks for it."""
    if side != "right":
        raise UnsupportedCheckpoint(
            f"{name} is {side!r}: it would need a reader that keeps the ends of long texts; only 'right' is "
            "supported"
        )


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
    """Return the tokens of the longest sequence: the files' limit, or the network's positions if fewer.

    Sequences are truncated where sentence-transformers and transformers do it: at max_seq_length of
    sentence_bert_config.json, else at model_max_length of tokenizer_config.json (max_len in old releases).
    Raises UnsupportedCheckpoint if the limit is no number ≥ 1.
    """
    options = read_options(directory)
    name = "model_max_length" if "model_max_length" in options else "max_len"
    field, length = f"{directory / FILE}: {name}", options.get(name)
    if (setting := module_window(directory)) is not None:
        field, length = setting
    if length is None:
        return config.max_positions
    if isinstance(length, bool) or not isinstance(length, int | float) or not length >= 1:
        raise UnsupportedCheckpoint(f"{field} is {length!r}; it must be a number of tokens ≥ 1")
    return int(min(length, config.max_positions))  # transformers writes 1e30 for a tokenizer without a limit
