"""Encodes query–title pairs as the token ids that a checkpoint was trained on, within its window."""

import copy
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from models.checkpoint.caches import TextCache, WordCache
from models.checkpoint.config import ModelConfig
from models.checkpoint.pair_template import BERT, PairTemplate
from models.checkpoint.pieces import Piece, piece_reader
from models.checkpoint.prompt import Prompt, read_prompt
from models.checkpoint.tokenizer_files import (
    FILE,
    SPECIAL,
    passes_types,
    read_tokenizer,
    read_window,
    unknown_id,
)
from models.errors import ModelError, TokenizerFailed, UnsupportedCheckpoint

FAILED = "the tokenizer failed on a text"

Ids = npt.NDArray[np.int32]

_ID_BYTES = 4  # of an int32
_CHARACTERS_PER_TOKEN = 8  # plenty: English text has four to five
_LONG = 1024  # characters: a text of fewer is read at once, for any window

BERT_CUT = re.compile(r"[\t\n\r !-/:-@\[-`{-~]")
"""ASCII whitespace and punctuation end a word for BertPreTokenizer, and never combine with what precedes."""

BERT_CHINESE_CUT = re.compile(
    BERT_CUT.pattern[:-1] + "\u3000-\u3002\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002a6df]"
)
"""For a BertNormalizer that makes each Chinese character a word. Those of Japanese sentence marks, too."""

_SPACE_CUT = re.compile(r"(?<=\S) (?=[A-Za-z0-9])")
"""A single space belongs to the word after it, for GPT-2's pattern and for Metaspace."""


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
    def beginning(self) -> bytes:
        """Return what is before the title; equal for all pairs of a query, if none is truncated there."""
        return self.ids[: self.title_start].tobytes()

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


class Portion(NamedTuple):
    """A part of a text; per token: its id, its first character, and whether it begins a word."""

    ids: list[int]
    starts: list[int]
    word_starts: list[bool]


class PairTokenizer:
    """Encodes pairs as transformers does (`longest_first` truncation), each distinct text once.

    A literal "[SEP]" or "</s>" in a title becomes ordinary pieces, so nobody can forge the structure of the
    sequence; other added tokens become their own ids (`models.checkpoint.tokenizer_files`).

    A text longer than 1,024 characters and than 8 characters per token of the window (2 if it is not ASCII)
    is read only until it alone overflows the window. If the other text of the pair overflows it too, the odd
    token of an odd window may go to another text than in transformers.

    Threads may share one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        vocab_size: int,
        cache_size: int = 65_536,
        prompt: Prompt | None = None,
    ) -> None:
        """max_tokens: the window, special tokens included. vocab_size: rows of the model's word embeddings.

        prompt: of a decoder; None for the tokenizer's own pairs.
        Raises UnsupportedCheckpoint if the tokenizer makes no pairs of the known form or does not fit the
        model.
        """
        tokenizer.encode_special_tokens = True  # structural tokens inside a text are text
        self._tokenizer = tokenizer
        self.prompt = prompt
        self.unknown = unknown_id(tokenizer)
        token, largest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        if largest >= vocab_size:
            raise UnsupportedCheckpoint(
                f"the tokenizer gives {token.removeprefix(SPECIAL)!r} the id {largest}; "
                f"the model's embeddings end at {vocab_size - 1}"
            )
        added = tokenizer.get_added_tokens_decoder()
        special = {id_ for id_, token in added.items() if token.special}
        self._forbidden = special - {self.unknown}
        if prompt is None:
            self._use(PairTemplate.of(tokenizer), max_tokens)
            self._forbidden |= {*self.template.before, *self.template.between, *self.template.after}
            self._forbidden -= {self.unknown}
        else:
            self._fixed = {part: self._ids_of(part) for part in prompt.parts}
            self._use(self._prompted(prompt.instruction), max_tokens)
        splits_as_bert = isinstance(tokenizer.normalizer, normalizers.BertNormalizer) and isinstance(
            tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer
        )
        is_bert = splits_as_bert and special == added.keys()
        self._cut = _SPACE_CUT
        if is_bert:
            self._cut = BERT_CHINESE_CUT if tokenizer.normalizer.handle_chinese_chars else BERT_CUT
        self._piece_characters = max(_LONG, 2 * max_tokens)
        self._whole_characters = max(_LONG, _CHARACTERS_PER_TOKEN * max_tokens)
        self._unknown_bytes = _as_bytes([self.unknown])
        self._encode: Callable[[list[str]], list[bytes]] = self._encode_batch
        if is_bert:
            self._encode = WordCache(self._word).ids
        self._model = tokenizer.model
        self._lowers = getattr(tokenizer.normalizer, "lowercase", False)
        self._piece_of = piece_reader(tokenizer)
        self._cache: TextCache[EncodedText] = TextCache(cache_size)

    @classmethod
    def load(cls, directory: Path, *, prompt: Prompt | None = None, **options: int) -> Self:
        """Load a checkpoint's tokenizer from its files (`models.checkpoint.tokenizer_files`).

        Raises UnsupportedCheckpoint, which names the file and says what is wrong with it.
        """
        with without_panics(UnsupportedCheckpoint, f"{directory}: the tokenizer cannot be used"):
            found = read_tokenizer(directory, None if prompt is None else "".join(prompt.parts))
            tokenizer = cls(found, prompt=prompt, **options)
        if passes_types(directory) is False:
            tokenizer.template = replace(tokenizer.template, two_segments=False)
        return tokenizer

    def _use(self, template: PairTemplate, max_tokens: int) -> None:
        """Put pairs together by a template. Raises UnsupportedCheckpoint if nothing else fits the window."""
        self.template = template
        self._budget = max_tokens - template.tokens
        if self._budget < 1:
            raise UnsupportedCheckpoint(
                f"a window of {max_tokens} tokens has no room for a query and a title"
            )
        parts = template.before, template.between, template.after
        self._before, self._between, self._after = map(_as_bytes, parts)

    def within(self, max_tokens: int) -> Self:
        """Return this tokenizer for a window of at most so many tokens, beside those of a prompt."""
        other = copy.copy(self)
        more = 0 if self.prompt is None else self.template.tokens
        other._use(self.template, min(self.max_tokens, max_tokens + more))
        return other

    def instructed(self, instruction: str | None) -> Self:
        """Return this tokenizer for prompts with an instruction; the same one if the model takes none.

        instruction: None or "": the model's default. Raises ModelError if it does not fit the window.
        """
        if not instruction or self.prompt is None or self.prompt.instructed is None:
            return self
        other = copy.copy(self)
        try:
            other._use(self._prompted(instruction), self.max_tokens)
        except UnsupportedCheckpoint:
            raise ModelError("it leaves no room in the window for a query and a title") from None
        return other

    def _prompted(self, instruction: str | None) -> PairTemplate:
        """Return the template of prompts with an instruction; None: without any."""
        prompt = self.prompt
        assert prompt is not None
        if instruction is None or prompt.instructed is None:
            before = self._fixed[prompt.before or ""]
        else:
            first, around, second = prompt.instructed
            _check_surrogates(instruction)
            text = self._encode_batch([around.dressed(instruction)])[0]
            before = self._fixed[first] + np.frombuffer(text, np.int32).tolist() + self._fixed[second]
        after = [id_ for part in prompt.after for id_ in self._fixed[part]]
        between = self._fixed[prompt.between]
        return PairTemplate(tuple(before), tuple(between), tuple(after), two_segments=False)

    def _ids_of(self, part: str) -> list[int]:
        """Return the ids of a part of the prompt, in which structural tokens are meant."""
        self._tokenizer.encode_special_tokens = False
        ids = self._tokenizer.encode(part, add_special_tokens=False).ids
        self._tokenizer.encode_special_tokens = True
        return list(ids)

    def dressed(self, pairs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
        """Return (query, title) pairs as they are encoded: a prompt's with the blanks around them."""
        if self.prompt is None:
            return pairs
        query, title = self.prompt.query.dressed, self.prompt.title.dressed
        return [(query(one), title(other)) for one, other in pairs]

    def kept(self, query: int, title: int, budget: int) -> tuple[int, int]:
        """Return how many tokens each text keeps: `kept_tokens`; in a prompt the title is cut first, and the
        query only beyond three quarters of the room."""
        if self.prompt is None or query + title <= budget:
            return kept_tokens(query, title, budget)
        title = min(title, budget - min(query, budget * 3 // 4))
        return budget - title, title

    def encode(self, pairs: Sequence[tuple[str, str]]) -> list[EncodedPair]:
        """Return one EncodedPair per (query, title), in order. Raises ModelError for a lone surrogate."""
        pairs = self.dressed(pairs)
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
                kept = self.kept(query.tokens, title.tokens, self._budget)
                query, title = self.part(query, 0, kept[0]), self.part(title, 0, kept[1])
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
        return min(len(text), self._whole_characters if text.isascii() else self._piece_characters)

    def may_occur(self, id_: int) -> bool:
        """Return whether a token is part of the template or may come from a text."""
        is_text = self._tokenizer.id_to_token(id_) is not None and id_ not in self._forbidden
        return is_text or id_ in {*self.template.before, *self.template.between, *self.template.after}

    def portions(self, text: str) -> Iterator[Portion]:
        """Encode a text that `reading` accepts to its end, however long it is, piece by piece.

        The tokens are those of the whole text, unless a piece has nowhere a place between two words, as in
        Chinese for most tokenizers: where it ends then, a token may differ.
        """
        start, size = 0, self._piece_characters
        while start < len(text):
            cut = self._cut.search(text, start + size, start + 2 * size)
            end = start + 2 * size if cut is None else cut.start()
            with without_panics(TokenizerFailed, FAILED):
                encoding = self._tokenizer.encode_batch([text[start:end]], add_special_tokens=False)[0]
            ids = [self.unknown if id_ in self._forbidden else id_ for id_ in encoding.ids]
            kept = [index for index, id_ in enumerate(ids) if id_ >= 0]
            offsets, words = encoding.offsets, encoding.word_ids
            yield Portion(
                [ids[index] for index in kept],
                [start + offsets[index][0] for index in kept],
                [index == 0 or words[index] != words[index - 1] for index in kept],
            )
            start = end

    def part(self, text: EncodedText, start: int, end: int) -> EncodedText:
        """Return the tokens [start, end) of an encoded text."""
        ids = text.ids[start * _ID_BYTES : end * _ID_BYTES]
        unknown = int(np.count_nonzero(np.frombuffer(ids, np.int32) == self.unknown))
        return EncodedText(ids, end - start, unknown)

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
        batch: list[str] = []
        long: list[str] = []
        characters = 0
        for text in missing:
            is_ascii = text.isascii()
            if not is_ascii:
                _check_surrogates(text)
            if len(text) > (self._whole_characters if is_ascii else self._piece_characters):
                long.append(text)
                continue
            batch.append(text)
            characters += len(text)
            if characters >= portion:
                yield self._encoded(batch)
                batch, characters = [], 0
        if batch:
            yield self._encoded(batch)
        for text in long:
            ids: list[int] = []
            for part in self.portions(text):
                ids += part.ids
                if len(ids) > self._reach:
                    break
                yield {}
            yield {text: self._text(_as_bytes(ids))}

    def _encoded(self, texts: list[str]) -> dict[str, EncodedText]:
        """Encode and cache texts that are not long."""
        with without_panics(TokenizerFailed, FAILED):
            encoded = dict(zip(texts, map(self._text, self._encode(texts)), strict=True))
        self._cache.put(encoded)
        return encoded

    def _encode_batch(self, texts: list[str]) -> list[bytes]:
        """Return the ids of each text, int32 values without special tokens."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [self._allowed(encoding.ids) for encoding in encodings]

    def _word(self, word: str) -> bytes:
        """Return the ids of a word as WordCache finds it."""
        if not (word.isascii() and word.isalnum()):
            return self._encode_batch([word])[0]
        # BERT's normalizer and splitter change only its capitals; the model takes a seventh of their time.
        tokens = self._model.tokenize(word.lower() if self._lowers else word)
        return self._allowed([token.id for token in tokens])

    def _allowed(self, ids: list[int]) -> bytes:
        """Return the ids with special tokens replaced by the unknown one, or left out if there is none."""
        if not self._forbidden.isdisjoint(ids):
            ids = [self.unknown if id_ in self._forbidden else id_ for id_ in ids]
            ids = [id_ for id_ in ids if id_ >= 0]
        return struct.pack(f"{len(ids)}i", *ids)

    def _text(self, ids: bytes) -> EncodedText:
        """Return the text of all these ids."""
        whole = EncodedText(ids, len(ids) // _ID_BYTES, 0)
        if self._unknown_bytes not in ids and whole.tokens <= self._reach:  # nearly always
            return whole
        return self.part(whole, 0, min(whole.tokens, self._reach))._replace(tokens=whole.tokens)

    @property
    def _reach(self) -> int:
        """Return how many tokens of a text are kept, the same for all instructions."""
        return self._budget if self.prompt is None else self.max_tokens


def load_tokenizer(directory: Path, config: ModelConfig) -> PairTokenizer:
    """Load a checkpoint's tokenizer, with the window that its files and its network allow.

    Raises UnsupportedCheckpoint, also for what transformers would score otherwise.
    """
    window, prompt = read_window(directory, config), None
    if config.decoder is not None:
        prompt = read_prompt(directory, config.family, config.decoder.instruction)
    tokenizer = PairTokenizer.load(directory, prompt=prompt, max_tokens=window, vocab_size=config.vocab_size)
    two_segments = config.type_vocab_size > 1 and tokenizer.template.two_segments
    if two_segments and passes_types(directory) is None:
        raise UnsupportedCheckpoint(
            f"{directory / FILE} has no model_input_names, and its class is a general one: transformers 4 "
            "passes the title's token types to the model, transformers 5 does not. Write down what it was "
            'trained with: "model_input_names": ["input_ids", "token_type_ids", "attention_mask"], or '
            "without the second"
        )
    pad = config.skipped_positions - 1
    if config.skipped_positions and tokenizer.may_occur(pad):  # transformers gives it no position of its own
        raise UnsupportedCheckpoint(
            f"config.json: pad_token_id is {pad}, which the tokenizer puts into pairs or makes of a text: it "
            "would need positions that leave this token out"
        )
    return tokenizer


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


def _as_bytes(ids: Sequence[int]) -> bytes:
    """Return the ids as the bytes of int32 values."""
    return struct.pack(f"{len(ids)}i", *ids)
