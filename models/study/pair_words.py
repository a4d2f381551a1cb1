"""The words of an encoded pair and their pieces, the units of word order, word parts and equal terms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.pieces import Piece
from models.checkpoint.tokenizer import EncodedPair, PairTokenizer

Ints = NDArray[np.int64]
Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class Words:
    """The words of [CLS] query [SEP] title [SEP], n tokens.

    word_of: (n,) the word of each token, −1 for special tokens. in_title: (words,) bool. pieces: the token
    ids of each word. spaced: whether its first piece stands for a space too, which byte-level BPE
    writes unless the word begins the text. spelled: its characters.
    """

    word_of: Ints
    in_title: NDArray[np.bool_]
    pieces: tuple[tuple[int, ...], ...]
    spaced: tuple[bool, ...]
    spelled: tuple[str, ...]

    @classmethod
    def of(cls, tokenizer: PairTokenizer, pair: EncodedPair) -> Words:
        """Return the words of one encoded pair."""
        special = set(pair.special)
        word_of = np.full(len(pair), -1, np.int64)
        pieces: list[list[int]] = []
        spelled: list[str] = []
        spaced: list[bool] = []
        in_title = []
        before: Piece | None = None
        for place, piece in enumerate(tokenizer.pieces(pair)):
            if place in special:
                before = None
                continue
            if before is None or piece.begins_word(before):
                pieces.append([])
                spelled.append("")
                spaced.append(piece.spaced)
                in_title.append(place >= pair.title_start)
            word_of[place] = len(pieces) - 1
            pieces[-1].append(int(pair.ids[place]))
            spelled[-1] += piece.text
            before = piece
        return cls(
            word_of, np.array(in_title, np.bool_), tuple(map(tuple, pieces)), tuple(spaced), tuple(spelled)
        )

    def __len__(self) -> int:
        return len(self.pieces)

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

    def attention(self, probabilities: Floats32) -> Floats32:
        """Return the attention from word to word: (heads, n, n) → (heads, words, words).

        Attention to a word is the sum over its pieces, attention from a word is the mean (Clark et al. 2019,
        §4.1), so that a split word counts as one.
        """
        member = (self.word_of[:, None] == np.arange(len(self))).astype(np.float32)  # (n, words)
        return np.asarray((member / member.sum(0)).T @ (probabilities @ member), np.float32)

    def whole_attention(self, probabilities: Floats32) -> Floats32:
        """Return the attention with each special token as a word too."""
        starts = np.flatnonzero((self.word_of < 0) | (np.diff(self.word_of, prepend=-2) != 0))
        unit = np.searchsorted(starts, np.arange(len(self.word_of)), side="right") - 1
        member = (unit[:, None] == np.arange(len(starts))).astype(np.float32)
        return np.asarray((member / member.sum(0)).T @ (probabilities @ member), np.float32)
