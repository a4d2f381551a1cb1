"""The words of an encoded pair and their pieces, the units of word order, word parts and equal terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from headroom.models.arrays import Bools, Floats32, Ints
from headroom.models.checkpoint.tokenizer import EncodedPair, PairTokenizer
from headroom.models.checkpoint.tokenizer_files import Piece

Split = Callable[[str], list[str]]
"""Takes a run of text without spaces and returns its words."""


@dataclass(frozen=True)
class Words:
    """The words of a query and a title in a row of n tokens.

    word_of: (n,) the word of each token, −1 for special tokens. in_title: (words,) bool. pieces: the token
    ids of each word. spaced: whether its first piece stands for a space too, which byte-level BPE writes
    unless the word begins the text. spelled: its characters.
    """

    word_of: Ints
    in_title: Bools
    pieces: tuple[tuple[int, ...], ...]
    spaced: tuple[bool, ...]
    spelled: tuple[str, ...]

    @classmethod
    def of(cls, tokenizer: PairTokenizer, pair: EncodedPair, split: Split | None = None) -> Words:
        """Return the words of one encoded pair: what stands between spaces.

        split: cuts runs of a script without spaces, such as Chinese, further. A piece that crosses a border
        belongs to the word in which it begins.
        """
        special = set(pair.special)
        pieces = tokenizer.pieces(pair)
        runs: list[list[int]] = []  # the tokens of each
        previous: Piece | None = None
        for token, piece in enumerate(pieces):
            if token in special:
                previous = None
                continue
            joined = previous is not None and split is not None and _no_space(previous, piece)
            if previous is None or (piece.begins_word(previous) and not joined):
                runs.append([])
            runs[-1].append(token)
            previous = piece
        words = runs if split is None else [word for run in runs for word in _cut(run, pieces, split)]
        ids = pair.ids.tolist()
        word_of = np.full(len(pair), -1, np.int64)
        for number, tokens in enumerate(words):
            word_of[tokens] = number
        return cls(
            word_of,
            np.array([tokens[0] >= pair.title_start for tokens in words], np.bool_),
            tuple(tuple(ids[token] for token in tokens) for tokens in words),
            tuple(pieces[tokens[0]].spaced for tokens in words),
            tuple("".join(pieces[token].text for token in tokens) for tokens in words),
        )

    def form(self, word: int) -> tuple[int, bool]:
        """Return the number of a word's pieces and whether a space precedes it: a substitute has the same."""
        return len(self.pieces[word]), self.spaced[word]

    @cached_property
    def texts(self) -> tuple[Ints, Ints]:
        """Return the words of the query and those of the title, in order."""
        return np.flatnonzero(~self.in_title), np.flatnonzero(self.in_title)

    @cached_property
    def matches(self) -> list[tuple[int, int]]:
        """Return (query word, title word) for every pair of equal words."""
        query, title = self.texts
        return [(int(a), int(b)) for a in query for b in title if self.spelled[a] == self.spelled[b]]

    def attention(self, probabilities: Floats32, *, special: bool = False) -> Floats32:
        """Return the attention from word to word: (heads, n, n) → (heads, words, words).

        Attention to a word is the sum over its pieces, attention from a word is the mean (Clark et al. 2019,
        §4.1), so that a split word counts as one. special: each special token counts as a word too.
        """
        unit = self.word_of
        if special:
            starts = np.flatnonzero((unit < 0) | (np.diff(unit, prepend=-2) != 0))
            unit = np.searchsorted(starts, np.arange(len(unit)), side="right") - 1
        member = (unit[:, None] == np.arange(unit.max(initial=-1) + 1)).astype(np.float32)  # (n, words)
        return np.asarray((member / member.sum(0)).T @ (probabilities @ member), np.float32)


def _cut(run: list[int], pieces: list[Piece], split: Split) -> list[list[int]]:
    """Return the tokens of each word of a run."""
    starts = set(accumulate(map(len, split("".join(pieces[token].text for token in run))), initial=0))
    words: list[list[int]] = [[]]
    position = 0  # in the run's text
    word_start = 0
    for token in run:
        if position in starts and position > word_start:  # a space alone begins no word
            words.append([])
            word_start = position
        words[-1].append(token)
        position += len(pieces[token].text)
    return words


def _no_space(previous: Piece, piece: Piece) -> bool:
    """Return whether both pieces are Chinese, so that WordPiece, too, would begin a word at each
    character."""
    return all("\u3400" <= char <= "\u9fff" for char in previous.text[-1:] + piece.text[:1])
