"""Encodes query–title pairs as the token ids that a checkpoint was trained on, within its window."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from models.checkpoint.caches import TextCache, WordCache
from models.checkpoint.long_text import BERT_CHINESE_CUT, BERT_CUT, LONG_WORD, Portion, cut_pattern, read_long
from models.checkpoint.pair_template import BERT, PairTemplate
from models.checkpoint.pieces import Piece, piece_reader
from models.checkpoint.tokenizer_files import SPECIAL, check_vocabulary, read_tokenizer, unknown_id
from models.errors import ModelError, TokenizerFailed, UnsupportedCheckpoint

FAILED = "the tokenizer failed on a text"

Ids = npt.NDArray[np.int32]

_ID_BYTES = 4  # of an int32
_CHARACTERS_PER_TOKEN = 8  # plenty: English text has four to five
_LONG = 1024  # characters: a text of fewer is read at once, for any window


@dataclass(slots=True, eq=False)  # not frozen: a frozen one costs three times as much to make
class EncodedPair:
    """A pair as [CLS] query [SEP] title [SEP], or with its template's special tokens; n tokens."""

    ids: Ids  # (n,)
    query_tokens: int
    unknown_tokens: int
    truncated: bool
    template: PairTemplate = BERT

    @property
    def query_start(self) -> int:
        """Return the number of special tokens before the query."""
        return len(self.template.before)

    @property
    def title_start(self) -> int:
        """Return the number of tokens before the title."""
        return self.query_tokens + self.template.before_title

    @property
    def title_tokens(self) -> int:
        """Return the number of the title's tokens; below 0 if the query was read without a title."""
        return len(self.ids) - self.title_start - len(self.template.after)

    @property
    def first_segment(self) -> int:
        """Return the number of tokens of token type 0, which come first; the others have type 1."""
        template = self.template
        return self.query_tokens + template.before_title if template.two_segments else len(self.ids)

    @property
    def special(self) -> list[int]:
        """Return the positions of the special tokens."""
        query_end = self.query_start + self.query_tokens
        end = len(self.ids)
        return [
            *range(self.query_start),
            *range(query_end, self.title_start),
            *range(end - len(self.template.after), end),
        ]

    def __len__(self) -> int:
        return len(self.ids)


class EncodedText(NamedTuple):
    """One encoded text, without special tokens."""

    ids: bytes  # int32 values, at most as many as fit into the window
    tokens: int  # the number of tokens of the whole text
    unknown: int  # the number of unknown tokens in `ids`


class PairTokenizer:
    """Encodes pairs as transformers does (`longest_first` truncation), each distinct text once.

    A literal "[SEP]" or "</s>" in a title becomes ordinary pieces, so nobody can forge the structure of the
    sequence; other added tokens become their own ids (`models.checkpoint.added_tokens`).

    A text longer than 1,024 characters and than 8 characters per token of the window (2 if it is not ASCII)
    is read only until it alone overflows the window. If the other text of the pair overflows it too, the odd
    token of an odd window may go to another text than in transformers.

    Threads may share one.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, max_tokens: int, vocab_size: int, cache_size: int = 65_536
    ) -> None:
        """max_tokens: the window, special tokens included. vocab_size: rows of the model's word embeddings.

        Raises UnsupportedCheckpoint if the tokenizer makes no pairs of the known form or does not fit the
        model.
        """
        tokenizer.encode_special_tokens = True  # structural tokens inside a text are text
        self._tokenizer = tokenizer
        self.unknown = unknown_id(tokenizer)
        self.template = template = PairTemplate.of(tokenizer)
        self._budget = max_tokens - template.tokens
        if self._budget < 1:
            raise UnsupportedCheckpoint(
                f"a window of {max_tokens} tokens has no room for a query and a title"
            )
        parts = template.before, template.between, template.after
        self._before, self._between, self._after = map(_as_bytes, parts)
        check_vocabulary(tokenizer, vocab_size)
        added = tokenizer.get_added_tokens_decoder()
        special = {id_ for id_, token in added.items() if token.special}
        self._forbidden = special.union(*parts) - {self.unknown}
        self._cut = cut_pattern(tokenizer) if special == added.keys() else None
        self._is_bert = self._cut in (BERT_CUT, BERT_CHINESE_CUT)
        self._segment_characters = max(_LONG, 2 * max_tokens)
        self._whole_characters = max(_LONG, _CHARACTERS_PER_TOKEN * max_tokens)
        self._unknown_bytes = _as_bytes([self.unknown])
        self._words = WordCache(self._word) if self._is_bert else None
        self._model = tokenizer.model
        longest_word = getattr(self._model, "max_input_chars_per_word", LONG_WORD)
        self._word_piece = self._is_bert and longest_word < LONG_WORD
        self._lowers = getattr(tokenizer.normalizer, "lowercase", False)
        self._piece_of = piece_reader(tokenizer)
        self._cache: TextCache[EncodedText] = TextCache(cache_size)

    @classmethod
    def load(
        cls, directory: Path, *, max_tokens: int, vocab_size: int, cache_size: int = 65_536
    ) -> PairTokenizer:
        """Load a checkpoint's tokenizer from its files (`models.checkpoint.tokenizer_files`).

        Raises UnsupportedCheckpoint, which names the file and says what is wrong with it.
        """
        with without_panics(UnsupportedCheckpoint, f"{directory}: the tokenizer cannot be used"):
            tokenizer = read_tokenizer(directory)
            return cls(tokenizer, max_tokens=max_tokens, vocab_size=vocab_size, cache_size=cache_size)

    def encode(self, pairs: Sequence[tuple[str, str]]) -> list[EncodedPair]:
        """Return one EncodedPair per (query, title), in order. Raises ModelError for a lone surrogate."""
        return self.join(pairs, self.encode_texts({text for pair in pairs for text in pair}))

    def join(self, pairs: Sequence[tuple[str, str]], texts: Mapping[str, EncodedText]) -> list[EncodedPair]:
        """Return one EncodedPair per (query, title), in order. texts: from `encode_texts`."""
        pieces: list[bytes] = []
        parts: list[tuple[EncodedText, EncodedText, bool]] = []
        before, between, after, template = self._before, self._between, self._after, self.template
        for query_text, title_text in pairs:
            query, title = texts[query_text], texts[title_text]
            truncated = query.tokens + title.tokens > self._budget
            if truncated:
                query, title = self._kept(query, title)
            pieces += (before, query.ids, between, title.ids, after)
            parts.append((query, title, truncated))
        ids = np.frombuffer(bytearray().join(pieces), np.int32)
        encoded: list[EncodedPair] = []
        end, special_tokens = 0, template.tokens
        for query, title, truncated in parts:
            start, end = end, end + query.tokens + title.tokens + special_tokens
            unknown = query.unknown + title.unknown
            encoded.append(EncodedPair(ids[start:end], query.tokens, unknown, truncated, template))
        return encoded

    def tokens(self, pair: EncodedPair) -> list[str]:
        """Return the pieces of a pair as the vocabulary writes them, special tokens included."""
        return [str(self._tokenizer.id_to_token(id_)).removeprefix(SPECIAL) for id_ in pair.ids.tolist()]

    def pieces(self, pair: EncodedPair) -> list[Piece]:
        """Return the pieces of a pair as they are spelled, special tokens included."""
        return [self._piece_of(token) for token in self.tokens(pair)]

    @property
    def budget(self) -> int:
        """Return how many tokens a query and a title may have together."""
        return self._budget

    @property
    def max_tokens(self) -> int:
        """Return the window, special tokens included."""
        return self._budget + self.template.tokens

    def characters(self, text: str) -> int:
        """Return about how many characters of a text are read until it overflows the window."""
        return min(len(text), self._most_at_once(text))

    def may_occur(self, id_: int) -> bool:
        """Return whether a token is part of the template or may come from a text."""
        template = self.template
        if id_ in {*template.before, *template.between, *template.after}:
            return True
        token = self._tokenizer.id_to_token(id_)
        if token is None or id_ in self._forbidden:
            return False
        splits = self._is_bert and len(token) > 1  # such a splitter never leaves "[PAD]" whole
        return not (splits and BERT_CUT.search(token))

    def portions(self, text: str) -> Iterator[Portion]:
        """Encode a text that `reading` accepts to its end, however long it is; some portions are empty."""

        def encode(start: int, end: int) -> Portion:
            """Return the tokens of the characters [start, end)."""
            with without_panics(TokenizerFailed, FAILED):
                encoding = self._tokenizer.encode_batch([text[start:end]], add_special_tokens=False)[0]
            ids = [self.unknown if id_ in self._forbidden else id_ for id_ in encoding.ids]
            kept = [index for index, id_ in enumerate(ids) if id_ >= 0]
            offsets, words = encoding.offsets, encoding.word_ids
            return Portion(
                [ids[index] for index in kept],
                [start + offsets[index][0] for index in kept],
                [index == 0 or words[index] != words[index - 1] for index in kept],
            )

        return read_long(text, encode, self._cut, self._segment_characters, word_piece=self._word_piece)

    def part(self, text: EncodedText, start: int, end: int) -> EncodedText:
        """Return the tokens [start, end) of an encoded text."""
        ids = text.ids[start * _ID_BYTES : end * _ID_BYTES]
        unknown = int(np.count_nonzero(np.frombuffer(ids, np.int32) == self.unknown))
        return EncodedText(ids, end - start, unknown)

    def _kept(self, query: EncodedText, title: EncodedText) -> tuple[EncodedText, EncodedText]:
        """Cut two texts that do not fit into the window together."""
        query_tokens, title_tokens = kept_tokens(query.tokens, title.tokens, self._budget)
        return self.part(query, 0, query_tokens), self.part(title, 0, title_tokens)

    def encode_texts(self, texts: Iterable[str]) -> dict[str, EncodedText]:
        """Encode each text by itself, for `join`. Raises ModelError for a lone surrogate."""
        encoded: dict[str, EncodedText] = {}
        for part in self.reading(texts, sys.maxsize):
            encoded |= part
        return encoded

    def reading(self, texts: Iterable[str], portion: int) -> Iterator[dict[str, EncodedText]]:
        """Encode each text by itself, step by step: about `portion` characters, or a part of a long text.

        Each step yields the texts that are done. Raises ModelError for a lone surrogate, and TokenizerFailed.
        """
        encoded, missing = self._cache.get(texts)
        yield encoded
        for text in missing:
            if not text.isascii():
                _check_surrogates(text)
        short = [text for text in missing if len(text) <= self._most_at_once(text)]
        encode = self._encode_batch if self._words is None else self._words.ids
        for batch in _batches(short, portion):
            with without_panics(TokenizerFailed, FAILED):
                new = {text: self._text(ids) for text, ids in zip(batch, encode(batch), strict=True)}
            self._cache.put(new)
            yield new
        if len(short) == len(missing):
            return
        for text in missing:
            if len(text) > self._most_at_once(text):
                ids: list[int] = []
                for part in self.portions(text):
                    ids += part.ids
                    if len(ids) > self._budget:
                        break
                    yield {}
                yield {text: self._text(_as_bytes(ids))}

    def _most_at_once(self, text: str) -> int:
        """Return the length up to which such a text is encoded whole."""
        return self._whole_characters if text.isascii() else self._segment_characters

    def _encode_batch(self, texts: list[str]) -> list[bytes]:
        """Return the ids of each text, int32 values without special tokens."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [_as_bytes(self._allowed(encoding.ids)) for encoding in encodings]

    def _word(self, word: str) -> bytes:
        """Return the ids of a word as WordCache finds it."""
        if not (word.isascii() and word.isalnum()):
            return self._encode_batch([word])[0]
        # BERT's normalizer and splitter change only its capitals; the model takes a seventh of their time.
        tokens = self._model.tokenize(word.lower() if self._lowers else word)
        return _as_bytes(self._allowed([token.id for token in tokens]))

    def _allowed(self, ids: list[int]) -> list[int]:
        """Return the ids with special tokens replaced by the unknown one, or left out if there is none."""
        if self._forbidden.isdisjoint(ids):
            return ids
        replaced = (self.unknown if id_ in self._forbidden else id_ for id_ in ids)
        return [id_ for id_ in replaced if id_ >= 0]

    def _text(self, ids: bytes) -> EncodedText:
        """Return the text of all these ids."""
        whole = EncodedText(ids, len(ids) // _ID_BYTES, 0)
        if self._unknown_bytes not in ids and whole.tokens <= self._budget:  # nearly always
            return whole
        return self.part(whole, 0, min(whole.tokens, self._budget))._replace(tokens=whole.tokens)


@contextmanager
def without_panics(kind: type[ModelError], what: str) -> Iterator[None]:
    """Raise `kind` where a library in Rust panics: a panic is no Exception, and handlers would miss it."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as panic:
        raise kind(f"{what}: {panic}") from panic


def kept_tokens(query: int, title: int, budget: int) -> tuple[int, int]:
    """Return how many tokens each text keeps: `longest_first` of the tokenizers library.

    The longer text is cut to the room that the shorter one leaves. If both are longer than half the budget,
    both are cut to half, and an odd token goes to the longer one (to the title if they are equal).
    """
    if query + title <= budget:
        return query, title
    shorter = min(query, title, budget // 2)
    return (budget - shorter, shorter) if query > title else (shorter, budget - shorter)


def _check_surrogates(text: str) -> None:
    try:
        text.encode()  # takes a tenth of the time of a search
    except UnicodeEncodeError as error:
        raise ModelError(
            f"character {error.start} of a text is the lone surrogate U+{ord(text[error.start]):04X}; "
            "text must be valid Unicode"
        ) from None


def _batches(texts: list[str], portion: int) -> Iterator[list[str]]:
    """Yield the texts in lists of about `portion` characters."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= portion:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _as_bytes(ids: Sequence[int]) -> bytes:
    """Return the ids as the bytes of int32 values."""
    return struct.pack(f"{len(ids)}i", *ids)
