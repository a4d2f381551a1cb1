"""Reads a checkpoint's tokenizer, WordPiece, byte-level BPE or Unigram, as transformers would."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from models.errors import UnsupportedCheckpoint

SPECIAL = "\ufdd0"
"""Precedes the special tokens in a Unigram vocabulary. Unigram would match a literal "</s>" in a text, and no
text holds this code point, which is no character."""

BERT_CUT = re.compile(r"[\t\n\r !-/:-@\[-`{-~]")
"""ASCII whitespace and punctuation end a word for BertPreTokenizer, and never combine with what precedes."""

_SPACE_CUT = re.compile(r"(?<=[A-Za-z0-9]) (?=[A-Za-z0-9])")
"""A single space belongs to the word after it, for GPT-2's pattern and for Metaspace."""

_BERT_TOKENIZERS = {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}
_DEFAULT_CLASS = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
}
_ONE_TYPE = {"RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"}
_SLOW_FILES = ("merges.txt", "sentencepiece.bpe.model", "spiece.model")


def read_tokenizer(directory: Path) -> Tokenizer:
    """Read tokenizer.json, or else vocab.txt or an older file, with tokenizer_config.json.

    Raises UnsupportedCheckpoint, which names the file and says what is wrong with it.
    """
    config_file = directory / "tokenizer_config.json"
    config = _read_json(config_file) if config_file.is_file() else {}
    class_name = _class_name(directory, config)
    file, vocabulary = directory / "tokenizer.json", directory / "vocab.txt"
    if file.is_file():
        return _from_json(file, config, class_name)
    if vocabulary.is_file() and class_name in _BERT_TOKENIZERS:
        return _from_vocabulary(vocabulary, config)
    slow = next((directory / name for name in _SLOW_FILES if (directory / name).is_file()), None)
    if slow is not None:
        return _converted(slow)
    if vocabulary.is_file():
        raise UnsupportedCheckpoint(f"{config_file} asks for {class_name}, which vocab.txt alone cannot give")
    raise UnsupportedCheckpoint(f"{directory} has neither tokenizer.json nor vocab.txt")


def _class_name(directory: Path, config: dict[str, Any]) -> str:
    """Return the class of the tokenizer, which model_type tells if tokenizer_config.json does not."""
    if name := config.get("tokenizer_class"):
        return str(name).removesuffix("Fast")
    file = directory / "config.json"
    model_type = _read_json(file).get("model_type") if file.is_file() else None
    return _DEFAULT_CLASS.get(str(model_type), "BertTokenizer")


def _from_json(file: Path, config: dict[str, Any], class_name: str) -> Tokenizer:
    """Read tokenizer.json. As in transformers, tokenizer_config.json overrules some of it."""
    try:
        tokenizer = _with_marked_special_tokens(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises Exception itself
        raise UnsupportedCheckpoint(f"{file} cannot be read: {error}") from None
    if class_name in _BERT_TOKENIZERS and isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        tokenizer.normalizer = _normalizer(config)
    splitter = tokenizer.pre_tokenizer
    if class_name == "RobertaTokenizer" and isinstance(splitter, pre_tokenizers.ByteLevel):
        splitter.add_prefix_space = bool(config.get("add_prefix_space", False))
        tokenizer.pre_tokenizer = splitter
    return tokenizer


def _with_marked_special_tokens(text: str) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, with the special tokens of a Unigram vocabulary marked."""
    raw = json.loads(text)
    vocabulary = raw["model"].get("vocab") if isinstance(raw.get("model"), dict) else None
    if not isinstance(vocabulary, list) or "added_tokens" not in raw:
        return Tokenizer.from_str(text)
    special = {token["content"] for token in raw["added_tokens"] if token["special"]}
    for token in raw["added_tokens"]:
        if token["special"]:
            token["content"] = SPECIAL + token["content"]
    raw["model"]["vocab"] = [[SPECIAL + piece if piece in special else piece, s] for piece, s in vocabulary]
    return Tokenizer.from_str(json.dumps(raw))


def _converted(file: Path) -> Tokenizer:
    """Return the tokenizer of files from before tokenizer.json, converted by transformers."""
    from transformers import AutoTokenizer  # slow to import, and few checkpoints need it

    directory = file.parent
    try:
        slow = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return _with_marked_special_tokens(slow.backend_tokenizer.to_str())
    except Exception as error:  # of many unrelated types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnsupportedCheckpoint(
            f"{directory} has no tokenizer.json, and transformers cannot convert {file.name}: "
            f"{reason[:200]}. "
            "Write one where the packages sentencepiece and protobuf are installed: "
            f"AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"
        ) from None


def _from_vocabulary(file: Path, config: dict[str, Any]) -> Tokenizer:
    """Return BERT's own tokenizer with the vocabulary of a vocab.txt."""
    try:
        vocabulary = WordPiece.read_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise UnsupportedCheckpoint(f"{file} cannot be read: {error}") from None
    cls, sep, unknown = (
        _token(config, f"{name}_token", f"[{name.upper()}]") for name in ("cls", "sep", "unk")
    )
    for token in (cls, sep, unknown):
        if token not in vocabulary:
            raise UnsupportedCheckpoint(f"{file} has no {token}")
    for token in (_token({"added": added}, "added", "") for added in _added_tokens(file.parent, config)):
        if token not in vocabulary:
            raise UnsupportedCheckpoint(
                f"{token!r} was added to {file}: such a tokenizer needs a tokenizer.json"
            )
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing((sep, vocabulary[sep]), (cls, vocabulary[cls]))
    return tokenizer


def _added_tokens(directory: Path, config: dict[str, Any]) -> list[Any]:
    file = directory / "added_tokens.json"
    return [*(_read_json(file) if file.is_file() else ()), *config.get("added_tokens_decoder", {}).values()]


def _token(config: dict[str, Any], name: str, default: str) -> str:
    token = config.get(name) or default
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _normalizer(config: dict[str, Any]) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedCheckpoint(f"{file} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnsupportedCheckpoint(f"{file} is not a JSON object")
    return value


def unknown_id(tokenizer: Tokenizer) -> int:
    """Return the id of the unknown token, −1 for a byte-level tokenizer without one.

    Raises UnsupportedCheckpoint for another kind of tokenizer than WordPiece, BPE and Unigram, or if the
    vocabulary does not hold the token.
    """
    model = tokenizer.model
    if not isinstance(model, BPE | Unigram | WordPiece):
        raise UnsupportedCheckpoint(
            f"the tokenizer is {type(model).__name__}, not BERT's WordPiece, BPE or Unigram"
        )
    if isinstance(model, Unigram):
        return _unigram_unknown(model)
    token = model.unk_token
    if token is None:
        return -1
    unknown = tokenizer.token_to_id(token)
    if unknown is None:
        raise UnsupportedCheckpoint(f"the tokenizer's vocabulary has no {token}")
    return int(unknown)


def _unigram_unknown(model: Unigram) -> int:
    try:
        pieces = model.tokenize(SPECIAL)  # no vocabulary has it as a piece
    except Exception:  # the library raises Exception itself: there is no unknown token
        return -1
    return int(pieces[0].id) if len(pieces) == 1 else -1  # more are bytes


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer with ids beyond the model's word embeddings."""
    token, largest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    if largest >= vocab_size:
        raise UnsupportedCheckpoint(
            f"the tokenizer gives {token.removeprefix(SPECIAL)!r} the id {largest}; "
            f"the model's embeddings end at {vocab_size - 1}"
        )


def cut_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return where a text may be cut without changing its tokens; None if that is not known."""
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        return BERT_CUT if isinstance(splitter, pre_tokenizers.BertPreTokenizer) else None
    plain = normalizer is None or isinstance(normalizer, normalizers.Precompiled)
    if plain and isinstance(splitter, pre_tokenizers.ByteLevel):
        return _SPACE_CUT
    if plain and isinstance(splitter, pre_tokenizers.Sequence):
        parts = json.loads(splitter.__getstate__())["pretokenizers"]
        if [part["type"] for part in parts] == ["WhitespaceSplit", "Metaspace"]:
            return _SPACE_CUT
    return None
