"""Turns query-title pairs into the token ids a BERT checkpoint was trained on, within its window."""

from __future__ import annotations

import json
import re
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from models.errors import ModelError, UnsupportedCheckpoint

Ids = npt.NDArray[np.int32]

_ID_BYTES = 4  # of an int32
_SPECIAL_TOKENS = 3  # [CLS] query [SEP] title [SEP]
_CACHED_CHARACTERS = 512  # longer texts are rare, and 65,536 of them would fill the memory
_SEGMENT_CHARACTERS_PER_TOKEN = 8  # generous: English text has four to five
_SEGMENT_CHARACTERS = 1024  # at least, whatever the window
_BERT_TOKENIZERS = {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}
# ASCII whitespace and punctuation end a word for BertPreTokenizer, and never combine with what precedes them.
_WORD_END = re.compile(r"[\t\n\r !-/:-@\[-`{-~]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(slots=True, eq=False)  # not frozen: that trebles what making one costs, and requests make many
class EncodedPair:
    """[CLS] query [SEP] title [SEP], n tokens; the first `first_segment` have token type 0, the others 1."""

    ids: Ids  # (n,)
    query_tokens: int
    unknown_tokens: int
    truncated: bool

    @property
    def first_segment(self) -> int:
        """Tokens of segment 0: [CLS] query [SEP]."""
        return self.query_tokens + 2

    def __len__(self) -> int:
        return len(self.ids)


class EncodedText(NamedTuple):
    """One encoded text, without special tokens."""

    ids: bytes  # int32s, at most as many as the window has room for
    tokens: int  # how many the text has
    unknown: int  # how many of `ids` are [UNK]


class PairTokenizer:
    """Encodes pairs as transformers does (`longest_first` truncation), each distinct text once.

    Text is only ever text: a literal "[SEP]" in a title becomes ordinary word pieces, so that nobody can
    forge the structure of the sequence. A text of more than 1,024 characters and 8 per token of the window is
    read only until it alone overflows the window; if the other text of the pair does so too, the odd token of
    an odd window may go to the other one than in transformers.

    Safe to call from several threads.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, max_tokens: int, vocab_size: int, cache_size: int = 65_536
    ) -> None:
        """max_tokens: the window, special tokens included. vocab_size: rows of the model's word embeddings.

        Raises UnsupportedCheckpoint when the tokenizer does not make BERT's pairs or does not fit the model.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # in the text they are text
        self._tokenizer = tokenizer
        self._budget = max_tokens - _SPECIAL_TOKENS
        if self._budget < 1:
            raise UnsupportedCheckpoint(
                f"a window of {max_tokens} tokens has no room for a query and a title"
            )
        self._cls, self._sep, self._unknown = _special_ids(tokenizer)
        self._cls_bytes, self._sep_bytes = _as_bytes([self._cls]), _as_bytes([self._sep])
        _check_vocabulary(tokenizer, vocab_size)
        added = tokenizer.get_added_tokens_decoder()
        special = {id_ for id_, token in added.items() if token.special}
        self._forbidden = (special | {self._cls, self._sep}) - {self._unknown}
        self._splits_words = _is_bert_pipeline(tokenizer) and special == added.keys()
        self._segment_characters = max(_SEGMENT_CHARACTERS, max_tokens * _SEGMENT_CHARACTERS_PER_TOKEN)
        self._cache = _Cache(cache_size)

    @classmethod
    def load(
        cls, directory: Path, *, max_tokens: int, vocab_size: int, cache_size: int = 65_536
    ) -> PairTokenizer:
        """The tokenizer of a checkpoint directory: tokenizer.json or vocab.txt, and tokenizer_config.json.

        Raises UnsupportedCheckpoint, with the name of the file and what is wrong with it.
        """
        tokenizer = _read(directory)
        return cls(tokenizer, max_tokens=max_tokens, vocab_size=vocab_size, cache_size=cache_size)

    def encode(self, pairs: Sequence[tuple[str, str]]) -> list[EncodedPair]:
        """One EncodedPair for each (query, title), in order. Raises ModelError for a lone surrogate."""
        return self.join(pairs, self.encode_texts({text for pair in pairs for text in pair}))

    def join(self, pairs: Sequence[tuple[str, str]], texts: Mapping[str, EncodedText]) -> list[EncodedPair]:
        """One EncodedPair for each (query, title), in order, from what `encode_texts` made of their texts."""
        pieces: list[bytes] = []
        parts: list[tuple[EncodedText, EncodedText, bool]] = []
        for query_text, title_text in pairs:
            query, title = texts[query_text], texts[title_text]
            truncated = query.tokens + title.tokens > self._budget
            if truncated:
                query, title = self._kept(query, title)
            pieces += (self._cls_bytes, query.ids, self._sep_bytes, title.ids, self._sep_bytes)
            parts.append((query, title, truncated))
        ids = np.frombuffer(bytearray().join(pieces), np.int32)
        encoded: list[EncodedPair] = []
        end = 0
        for query, title, truncated in parts:
            start, end = end, end + query.tokens + title.tokens + _SPECIAL_TOKENS
            unknown = query.unknown + title.unknown
            encoded.append(EncodedPair(ids[start:end], query.tokens, unknown, truncated))
        return encoded

    def tokens(self, pair: EncodedPair) -> list[str]:
        """The word pieces of a pair, special tokens included."""
        return [str(self._tokenizer.id_to_token(id_)) for id_ in pair.ids.tolist()]

    def _kept(self, query: EncodedText, title: EncodedText) -> tuple[EncodedText, EncodedText]:
        """What is kept of two texts that do not fit the window together."""
        kept = []
        lengths = kept_tokens(query.tokens, title.tokens, self._budget)
        for text, tokens in zip((query, title), lengths, strict=True):
            ids = text.ids[: tokens * _ID_BYTES]
            unknown = int(np.count_nonzero(np.frombuffer(ids, np.int32) == self._unknown))
            kept.append(EncodedText(ids, tokens, unknown))
        return kept[0], kept[1]

    def encode_texts(self, texts: Iterable[str]) -> dict[str, EncodedText]:
        """The texts by themselves, for `join`. Raises ModelError for a lone surrogate."""
        encoded, missing = self._cache.get(texts)
        if not missing:
            return encoded
        for text in missing:
            if lone := _SURROGATE.search(text):
                raise ModelError(
                    f"character {lone.start()} of a text is the lone surrogate U+{ord(lone[0]):04X}; "
                    "text must be valid Unicode"
                )
        short = [text for text in missing if len(text) <= self._segment_characters or not self._splits_words]
        encodings = self._tokenizer.encode_batch_fast(short, add_special_tokens=False)
        new = {text: self._text(encoding.ids) for text, encoding in zip(short, encodings, strict=True)}
        new |= {text: self._text(self._long_ids(text)) for text in missing if text not in new}
        self._cache.put(new)
        return encoded | new

    def _long_ids(self, text: str) -> list[int]:
        """The ids of a long text as far as they can matter; cut between words, it keeps the ids it had."""
        ids: list[int] = []
        for segment in word_segments(text, self._segment_characters):
            ids += self._tokenizer.encode_batch_fast([segment], add_special_tokens=False)[0].ids
            if len(ids) > self._budget:
                break
        return ids

    def _text(self, ids: list[int]) -> EncodedText:
        if not self._forbidden.isdisjoint(ids):
            ids = [self._unknown if id_ in self._forbidden else id_ for id_ in ids]
        kept = ids[: self._budget]
        return EncodedText(_as_bytes(kept), tokens=len(ids), unknown=kept.count(self._unknown))


def kept_tokens(query: int, title: int, budget: int) -> tuple[int, int]:
    """How many tokens of each are kept: `longest_first` of the tokenizers library.

    The longer one is cut to what the shorter leaves; when both are longer than half the budget, both are cut
    to half, and an odd token goes to the longer one (the title, when they are equal).
    """
    if query + title <= budget:
        return query, title
    shorter = min(query, title, budget // 2)
    return (budget - shorter, shorter) if query > title else (shorter, budget - shorter)


def word_segments(text: str, characters: int) -> Iterator[str]:
    """The text in pieces of about so many characters, cut only where BertPreTokenizer ends a word anyway."""
    start = 0
    while start < len(text):
        end = _WORD_END.search(text, start + characters)
        stop = end.start() if end else len(text)
        yield text[start:stop]
        start = stop


def _as_bytes(ids: list[int]) -> bytes:
    """int32s as they lie in memory."""
    return struct.pack(f"{len(ids)}i", *ids)


class _Cache:
    """The texts used last, for several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._texts: OrderedDict[str, EncodedText] = OrderedDict()
        self._lock = Lock()

    def get(self, texts: Iterable[str]) -> tuple[dict[str, EncodedText], list[str]]:
        """Those that are here, and those that are not."""
        found: dict[str, EncodedText] = {}
        missing: list[str] = []
        with self._lock:
            for text in texts:
                if (encoded := self._texts.get(text)) is None:
                    missing.append(text)
                else:
                    self._texts.move_to_end(text)
                    found[text] = encoded
        return found, missing

    def put(self, texts: dict[str, EncodedText]) -> None:
        short = {text: encoded for text, encoded in texts.items() if len(text) <= _CACHED_CHARACTERS}
        with self._lock:
            self._texts.update(short)
            while len(self._texts) > self._size:
                self._texts.popitem(last=False)


def _read(directory: Path) -> Tokenizer:
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
        # As in transformers: for a BERT tokenizer, tokenizer_config.json and its defaults overrule the file.
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
    """BERT's own tokenizer over a vocab.txt."""
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


def _special_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """The ids of [CLS], [SEP] and [UNK], seen in what the tokenizer makes of a pair."""
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
    if pair.ids != ids or pair.type_ids != types or sum(pair.special_tokens_mask) != _SPECIAL_TOKENS:
        raise UnsupportedCheckpoint(
            f"the tokenizer makes a pair of {' '.join(pair.tokens)} with token types {pair.type_ids}, "
            "not [CLS] query [SEP] title [SEP] with types 0 and 1"
        )
    return cls, sep, unknown


def _check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    token, largest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    if largest >= vocab_size:
        raise UnsupportedCheckpoint(
            f"the tokenizer gives {token!r} the id {largest}; the model's embeddings end at {vocab_size - 1}"
        )


def _is_bert_pipeline(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer.normalizer, normalizers.BertNormalizer) and isinstance(
        tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer
    )
