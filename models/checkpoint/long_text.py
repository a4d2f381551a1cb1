"""Reads a long text part by part, as far as it is wanted; the tokens are those of the whole text.

Where a word surely ends, a text may be cut (`cut_pattern`). A text that cannot be cut, such as one of
Chinese for a byte-level tokenizer, is read in pieces that overlap. Two pieces are joined in the middle of
what they share, where tokens of both begin at the same character; if they do so nowhere, the piece grows.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from tokenizers import Tokenizer, normalizers, pre_tokenizers

GROWTH = 4
"""Factor by which a piece grows that cannot be joined."""

LONG_WORD = 1_000
"""Characters after which a word of letters is longer than any that WordPiece looks up: it is unknown."""

BERT_CUT = re.compile(r"[\t\n\r !-/:-@\[-`{-~]")
"""ASCII whitespace and punctuation end a word for BertPreTokenizer, and never combine with what precedes."""

CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Chinese characters, for a character class; in the last range others, too."""

BERT_CHINESE_CUT = re.compile(
    BERT_CUT.pattern[:-1] + "\u3000-\u3002\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002a6df]"
)
"""For a BertNormalizer that makes each Chinese character a word. Those of Japanese sentence marks, too."""

_SPACE_CUT = re.compile(r"(?<=[A-Za-z0-9]) (?=[A-Za-z0-9])")
"""A single space belongs to the word after it, for GPT-2's pattern and for Metaspace."""

_LETTERS = re.compile(rf"[^\W_{CHINESE}]+")
_BLOCK = 65_536  # characters of a word that are skipped at once


def cut_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return where a text may be cut without changing its tokens; None if that is not known."""
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        if not isinstance(splitter, pre_tokenizers.BertPreTokenizer):
            return None
        return BERT_CHINESE_CUT if normalizer.handle_chinese_chars else BERT_CUT
    plain = normalizer is None or isinstance(normalizer, normalizers.Precompiled)
    if plain and isinstance(splitter, pre_tokenizers.ByteLevel):
        return _SPACE_CUT
    if plain and isinstance(splitter, pre_tokenizers.Sequence):
        parts = json.loads(splitter.__getstate__())["pretokenizers"]
        if [part["type"] for part in parts] == ["WhitespaceSplit", "Metaspace"]:
            return _SPACE_CUT
    return None


class Portion(NamedTuple):
    """A part of an encoded text, of any length; per token: its id, its first character, whether it begins a
    word."""

    ids: list[int]
    starts: list[int]
    word_starts: list[bool]

    def between(self, start: int, end: int | None) -> Portion:
        """Return the tokens that begin in the characters [start, end)."""
        first = bisect_left(self.starts, start)
        last = len(self.ids) if end is None else bisect_left(self.starts, end)
        return Portion(self.ids[first:last], self.starts[first:last], self.word_starts[first:last])


NOTHING = Portion([], [], [])

Encode = Callable[[int, int], Portion]
"""Encodes the characters [start, end) of the text by themselves; the portion counts from the text's start."""


def read_long(
    text: str, encode: Encode, cut: re.Pattern[str] | None, size: int, *, word_piece: bool
) -> Iterator[Portion]:
    """Yield the tokens of a text in portions of about `size` characters; empty ones say that it goes on.

    cut: matches where the text may be cut; None: nowhere. word_piece: long words become one unknown token.
    """
    start, step = 0, size
    while start < len(text):
        end = _next_cut(text, cut, start + step, start + 2 * step)
        if end is not None:
            is_blank = word_piece and text[start:end].isspace()
            portion = NOTHING if is_blank else encode(start, end)
            yield portion
            start, step = end, size if portion.ids else min(2 * step, _BLOCK)
        elif word_piece and cut is not None:
            start = yield from _read_word(text, start, encode, cut, size)
        else:
            start = yield from _read_overlapping(text, start, encode, cut, size)


def _read_word(
    text: str, start: int, encode: Encode, cut: re.Pattern[str], size: int
) -> Generator[Portion, None, int]:
    """Yield the tokens up to the end of the word that begins in the next `size` characters; return its end.

    Only so many letters of a longer word are encoded that WordPiece takes it for unknown.
    """
    known = end = start + size + LONG_WORD
    if _LETTERS.fullmatch(text, start + size, known):
        while letters := _letters(text, end):
            end += letters
            yield NOTHING
        if end == len(text) or cut.match(text, end):
            yield encode(start, known)
            return end
    found = cut.search(text, end)
    end = len(text) if found is None else found.start()
    yield encode(start, end)
    return end


def _letters(text: str, start: int) -> int:
    """Return how many letters follow, Chinese ones not counted, up to a limit."""
    block = text[start : start + _BLOCK]
    if block.isascii() and block.isalnum():  # ten times as fast
        return len(block)
    letters = _LETTERS.match(block)
    return letters.end() if letters else 0


def _next_cut(text: str, cut: re.Pattern[str] | None, start: int, end: int) -> int | None:
    """Return where a text may be cut in the characters [start, end); its own end counts, too."""
    found = None if cut is None else cut.search(text, start, end)
    if found is not None:
        return found.start()
    return len(text) if len(text) <= end else None


def _read_overlapping(
    text: str, start: int, encode: Encode, cut: re.Pattern[str] | None, size: int
) -> Generator[Portion, None, int]:
    """Yield the tokens from `start` to the next cut that a piece reaches; return where that cut is."""
    begin, end = start, start + 2 * size  # of the piece
    piece, yielded = encode(begin, end), start
    while True:
        overlap = end - size // 2
        longer = overlap + 2 * size
        stop = _next_cut(text, cut, end, longer)
        following = encode(overlap, longer if stop is None else stop)
        joint = _joint(piece, following, overlap + size // 4)
        if joint is not None:
            yield piece.between(yielded, joint)
            begin, piece, yielded = overlap, following, joint
        else:
            longer = begin + GROWTH * (end - begin)
            stop = _next_cut(text, cut, end, longer)
            piece = encode(begin, longer if stop is None else stop)
            yield NOTHING
        end = longer
        if stop is not None:
            yield piece.between(yielded, None)
            return stop


def _joint(piece: Portion, following: Portion, middle: int) -> int | None:
    """Return the first character from `middle` on where tokens of both pieces begin; None without one."""
    begins = set(piece.starts)
    return next((start for start in following.starts if start >= middle and start in begins), None)
