"""Reads a checkpoint's tokenizer, WordPiece, byte-level BPE or Unigram, as transformers would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from models.checkpoint.added_tokens import add_declared_tokens, content_of, structural_tokens
from models.checkpoint.tokenizer_options import (
    check_side,
    gives_types,
    read_options,
    tokenizer_class,
    without_types,
)
from models.errors import UnsupportedCheckpoint

SPECIAL = "\ufdd0"
"""Precedes the structural tokens in a Unigram vocabulary. Unigram would match a literal "</s>" in a text, and
no text holds this code point, which is no character."""

_BERT_TOKENIZERS = {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}

_SLOW_FILES = ("merges.txt", "sentencepiece.bpe.model", "spiece.model")


def read_tokenizer(directory: Path) -> Tokenizer:
    """Read tokenizer.json, or else vocab.txt or an older file, with tokenizer_config.json.

    Raises UnsupportedCheckpoint, which names the file and says what is wrong with it.
    """
    config = read_options(directory)
    tokenizer = _read(directory, config, tokenizer_class(directory, config))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer if gives_types(directory) is not False else without_types(tokenizer)


def _read(directory: Path, config: dict[str, Any], class_name: str) -> Tokenizer:
    """Return the tokenizer with the token types of its post-processor."""
    file, vocabulary = directory / "tokenizer.json", directory / "vocab.txt"
    if file.is_file():
        return _from_json(file, config, class_name)
    if vocabulary.is_file() and class_name in _BERT_TOKENIZERS:
        return _from_vocabulary(vocabulary, config)
    slow = next((directory / name for name in _SLOW_FILES if (directory / name).is_file()), None)
    if slow is not None:
        return _converted(slow, config)
    if vocabulary.is_file():
        raise UnsupportedCheckpoint(
            f"{directory / 'tokenizer_config.json'} asks for {class_name}, which vocab.txt alone cannot give"
        )
    raise UnsupportedCheckpoint(f"{directory} has neither tokenizer.json nor vocab.txt")


def _from_json(file: Path, config: dict[str, Any], class_name: str) -> Tokenizer:
    """Read tokenizer.json. tokenizer_config.json overrules some of it, as in transformers.

    transformers 5 takes the normalizer of a BertTokenizer from tokenizer_config.json, whatever tokenizer.json
    holds. Here another normalizer than BERT's stays, because the checkpoint was trained with it.
    """
    try:
        tokenizer, structure = _parsed(file.read_text(encoding="utf-8"), config)
    except Exception as error:  # the library raises Exception itself
        raise UnsupportedCheckpoint(f"{file} cannot be read: {error}") from None
    if tokenizer.truncation and "truncation_side" not in config:
        check_side(tokenizer.truncation["direction"], f"{file}: truncation.direction")
    add_declared_tokens(tokenizer, file.parent, config, structure)
    if class_name in _BERT_TOKENIZERS and isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        tokenizer.normalizer = _normalizer(config)
    splitter = tokenizer.pre_tokenizer
    if class_name == "RobertaTokenizer" and isinstance(splitter, pre_tokenizers.ByteLevel):
        splitter.add_prefix_space = bool(config.get("add_prefix_space", False))
        tokenizer.pre_tokenizer = splitter
    return tokenizer


def _parsed(text: str, config: dict[str, Any]) -> tuple[Tokenizer, frozenset[str]]:
    """Return the tokenizer of a tokenizer.json, and its structural tokens as they are spelled.

    Those alone are special in it, and marked by SPECIAL in a Unigram vocabulary.
    """
    raw = json.loads(text)
    structure = structural_tokens(config, raw.get("post_processor"))
    added = raw.get("added_tokens") or []
    vocabulary = raw["model"].get("vocab") if isinstance(raw.get("model"), dict) else None
    is_unigram = isinstance(vocabulary, list) and "added_tokens" in raw
    special = {token["content"] for token in added} & structure
    if not is_unigram and all(token["special"] == (token["content"] in special) for token in added):
        return Tokenizer.from_str(text), structure
    for token in added:
        token["special"] = token["content"] in special
        if is_unigram and token["special"]:
            token["content"] = SPECIAL + token["content"]
    if isinstance(vocabulary, list) and is_unigram:
        raw["model"]["vocab"] = [
            [SPECIAL + piece if piece in special else piece, score] for piece, score in vocabulary
        ]
    return Tokenizer.from_str(json.dumps(raw)), structure


def _converted(file: Path, config: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of files from before tokenizer.json, converted by transformers."""
    from transformers import AutoTokenizer  # slow to import, and few checkpoints need it

    directory = file.parent
    try:
        slow = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return _parsed(slow.backend_tokenizer.to_str(), config)[0]
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
        content_of(config.get(f"{name}_token") or f"[{name.upper()}]") for name in ("cls", "sep", "unk")
    )
    for token in (cls, sep, unknown):
        if token not in vocabulary:
            raise UnsupportedCheckpoint(f"{file} has no {token}")
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer = _normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing((sep, vocabulary[sep]), (cls, vocabulary[cls]))
    add_declared_tokens(tokenizer, file.parent, config, structural_tokens(config))
    return tokenizer


def _normalizer(config: dict[str, Any]) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=_flag(config, "tokenize_chinese_chars"),
        strip_accents=None if config.get("strip_accents") is None else _flag(config, "strip_accents"),
        lowercase=_flag(config, "do_lower_case"),
    )


def _flag(config: dict[str, Any], name: str) -> bool:
    value = config.get(name, True)
    if type(value) is not bool:
        raise UnsupportedCheckpoint(f"tokenizer_config.json: {name} is {value!r}; it must be true or false")
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
