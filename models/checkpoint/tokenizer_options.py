"""Options in tokenizer_config.json: a tokenizer's class, how it truncates, and which token types it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from models.checkpoint.config import ModelConfig
from models.checkpoint.fields import read_json
from models.checkpoint.modules import module_window
from models.checkpoint.pair_template import PairTemplate
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


_PASSED = {"BertTokenizer", "ElectraTokenizer", "ConvBertTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer"}
_NOT_PASSED = {
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "CamembertTokenizer",
    "DistilBertTokenizer",
    "MPNetTokenizer",
}


def gives_types(directory: Path) -> bool | None:
    """Return whether transformers passes the post-processor's token types to the network.

    None if its releases differ: without model_input_names, transformers 4 passes those of a tokenizer of a
    general class, transformers 5 does not.
    """
    options = read_options(directory)
    names = options.get("model_input_names")
    if names is None:
        name = tokenizer_class(directory, options)
        return True if name in _PASSED else False if name in _NOT_PASSED else None
    if not isinstance(names, list):
        raise UnsupportedCheckpoint(f"{directory / FILE}: model_input_names is {names!r}; it must be a list")
    return "token_type_ids" in names


def check_types(directory: Path) -> None:
    """Refuse a tokenizer if nobody can tell which token types its network was trained with."""
    if gives_types(directory) is None:
        name = tokenizer_class(directory, read_options(directory))
        raise UnsupportedCheckpoint(
            f"{directory / FILE} has no model_input_names, and its class is {name}: transformers 4 passes "
            "the title's token types to the model, transformers 5 does not. Write down what it was trained "
            'with: "model_input_names": ["input_ids", "token_type_ids", "attention_mask"], or without the '
            "second"
        )


def without_types(tokenizer: Tokenizer) -> Tokenizer:
    """Give all tokens of a pair type 0."""
    template = PairTemplate.of(tokenizer)
    if not template.two_segments:
        return tokenizer
    parts = {"before": template.before, "between": template.between, "after": template.after}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["before", "$A", "after"],
        pair=["before", "$A", "between", "$B:0", "after"],
        special_tokens=[
            {"id": name, "ids": list(ids), "tokens": [tokenizer.id_to_token(id_) for id_ in ids]}
            for name, ids in parts.items()
        ],
    )
    return tokenizer
