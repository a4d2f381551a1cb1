"""Words and their pieces in an encoded pair: the units in which word order, word parts and equal terms are
counted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from models.checkpoint.tokenizer import EncodedPair, PairTokenizer

Ints = NDArray[np.int64]
Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class Words:
    """The words of [CLS] query [SEP] title [SEP], n tokens.

    word_of: (n,) the word of each token, −1 for the special ones. in_title: (words,) bool.
    pieces: the token ids of each word. A word is what BERT's pre-tokenizer splits off; "##" joins its pieces.
    """

    word_of: Ints
    in_title: NDArray[np.bool_]
    pieces: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tokenizer: PairTokenizer, pair: EncodedPair) -> Words:
        """The words of one encoded pair."""
        tokens = tokenizer.tokens(pair)
        special = {0, pair.first_segment - 1, len(pair) - 1}
        word_of = np.full(len(pair), -1, np.int64)
        pieces: list[list[int]] = []
        in_title = []
        for place, token in enumerate(tokens):
            if place in special:
                continue
            if not token.startswith("##") or word_of[place - 1] < 0:
                pieces.append([])
                in_title.append(place >= pair.first_segment)
            word_of[place] = len(pieces) - 1
            pieces[-1].append(int(pair.ids[place]))
        return cls(word_of, np.array(in_title, np.bool_), tuple(map(tuple, pieces)))

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def texts(self) -> tuple[Ints, Ints]:
        """The words of the query and those of the title, in order."""
        return np.flatnonzero(~self.in_title), np.flatnonzero(self.in_title)

    @cached_property
    def matches(self) -> list[tuple[int, int]]:
        """(query word, title word) of every pair of equal words."""
        query, title = self.texts
        return [(int(a), int(b)) for a in query for b in title if self.pieces[a] == self.pieces[b]]

    def attention(self, probabilities: Floats32) -> Floats32:
        """Attention from word to word: (heads, n, n) → (heads, words, words).

        To a word is the sum over its pieces, from a word the mean (Clark et al. 2019, §4.1), so that words
        that were split count as one.
        """
        member = (self.word_of[:, None] == np.arange(len(self))).astype(np.float32)  # (n, words)
        return np.asarray((member / member.sum(0)).T @ (probabilities @ member), np.float32)

    def whole_attention(self, probabilities: Floats32) -> Floats32:
        """The same with [CLS] and each [SEP] as words of their own: [CLS], query, [SEP], title, [SEP]."""
        starts = np.flatnonzero((self.word_of < 0) | (np.diff(self.word_of, prepend=-2) != 0))
        unit = np.searchsorted(starts, np.arange(len(self.word_of)), side="right") - 1
        member = (unit[:, None] == np.arange(len(starts))).astype(np.float32)
        return np.asarray((member / member.sum(0)).T @ (probabilities @ member), np.float32)
