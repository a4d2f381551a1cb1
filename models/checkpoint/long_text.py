"""Reads a long text part by part, as far as it is wanted; the tokens are those of the whole text.

Where a word surely ends, a text may be cut (`segments`). A text without such a place, such as one of Chinese
for a byte-level tokenizer, is read in pieces that overlap. Two pieces are joined where a token of both begins
at the same character and the tokens after it agree; if they agree nowhere, the piece grows.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from models.checkpoint.segments import CHINESE

AGREEING_TOKENS = 16
"""Two pieces are joined where so many tokens agree."""

GROWTH = 4
"""A piece that cannot be joined becomes so many times as long."""

LONG_WORD = 1_000
"""Characters after which a word of letters is longer than any that WordPiece looks up: it is unknown."""

_LETTERS = re.compile(rf"[^\W_{CHINESE}]+")
_BLOCK = 65_536  # characters of a word that are skipped at once


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

    Of a word of letters, as many are encoded as make it unknown to WordPiece.
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
    """Yield the tokens from `start` to the next cut that a piece reaches; return the place of that cut."""
    begin, end = start, start + 2 * size  # of the piece
    piece = encode(begin, end)
    told = start
    while True:
        overlap = end - size // 2
        stop = _next_cut(text, cut, end, overlap + 2 * size)
        next_end = overlap + 2 * size if stop is None else stop
        following = encode(overlap, next_end)
        joint = _joint(piece, following)
        if joint is not None:
            yield piece.between(told, joint)
            begin, piece, told = overlap, following, joint
        else:
            longer = begin + GROWTH * (end - begin)
            stop = _next_cut(text, cut, end, longer)
            next_end = longer if stop is None else stop
            piece = encode(begin, next_end)
            yield NOTHING
        end = next_end
        if stop is not None:
            yield piece.between(told, None)
            return stop


def _joint(piece: Portion, following: Portion) -> int | None:
    """Return the first character from which on two pieces agree, None if there is none."""
    for index in range(1, len(following.ids) - AGREEING_TOKENS):
        place = following.starts[index]
        if place == following.starts[index - 1]:  # inside a character of several tokens
            continue
        other = bisect_left(piece.starts, place)
        these = slice(index, index + AGREEING_TOKENS)
        those = slice(other, other + AGREEING_TOKENS)
        if other + AGREEING_TOKENS > len(piece.ids):
            return None
        if piece.starts[those] == following.starts[these] and piece.ids[those] == following.ids[these]:
            return place
    return None
