"""Reads the tokenizer of a BERT checkpoint and refuses one that does not encode pairs as BERT does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from models.errors import UnsupportedCheckpoint

SPECIAL_TOKENS = 3
"""Special tokens of a pair: [CLS] query [SEP] title [SEP]."""

_BERT_TOKENIZERS = {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}


def read_tokenizer(directory: Path) -> Tokenizer:
    """Read tokenizer.json or vocab.txt, with tokenizer_config.json, as transformers would.

    Raises UnsupportedCheckpoint, which names the file and says what is wrong with it.
    """
    config_file = directory / "tokenizer_config.json"
    config = _read_json(config_file) if config_file.is_file() else {}
    class_name = str(config.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast")
    is_bert = class_name in _BERT_TOKENIZERS
    file = directory / "tokenizer.json"
    if file.is_file():
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises Exception itself
            raise UnsupportedCheckpoint(f"{file} cannot be read: {error}") from None
        # As in transformers, tokenizer_config.json and its defaults overrule a BERT tokenizer's own file.
        if is_bert and isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
            tokenizer.normalizer = _normalizer(config)
        return tokenizer
    file = directory / "vocab.txt"
    if not file.is_file():
        raise UnsupportedCheckpoint(f"{directory} has neither tokenizer.json nor vocab.txt")
    if not is_bert:
        raise UnsupportedCheckpoint(f"{config_file} asks for {class_name}, which vocab.txt alone cannot give")
    return _from_vocabulary(file, config)


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


def special_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """Return the ids of [CLS], [SEP] and [UNK].

    Raises UnsupportedCheckpoint if the tokenizer does not encode a pair as BERT does.
    """
    if not isinstance(tokenizer.model, WordPiece):
        raise UnsupportedCheckpoint(
            f"the tokenizer is {type(tokenizer.model).__name__}, not BERT's WordPiece"
        )
    unknown = tokenizer.token_to_id(tokenizer.model.unk_token)
    if unknown is None:
        raise UnsupportedCheckpoint(f"the tokenizer's vocabulary has no {tokenizer.model.unk_token}")
    first, second = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
    pair = tokenizer.encode("a", "b")
    cls, sep = (pair.ids[0], pair.ids[-1]) if pair.ids else (unknown, unknown)
    ids = [cls, *first, sep, *second, sep]
    types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    if pair.ids != ids or pair.type_ids != types or sum(pair.special_tokens_mask) != SPECIAL_TOKENS:
        raise UnsupportedCheckpoint(
            f"the tokenizer makes a pair of {' '.join(pair.tokens)} with token types {pair.type_ids}, "
            "not [CLS] query [SEP] title [SEP] with types 0 and 1"
        )
    return cls, sep, unknown


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer with ids beyond the model's word embeddings."""
    token, largest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    if largest >= vocab_size:
        raise UnsupportedCheckpoint(
            f"the tokenizer gives {token!r} the id {largest}; the model's embeddings end at {vocab_size - 1}"
        )


def is_bert_pipeline(tokenizer: Tokenizer) -> bool:
    """Return whether the text is cleaned and split into words by BERT's own rules."""
    return isinstance(tokenizer.normalizer, normalizers.BertNormalizer) and isinstance(
        tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer
    )
