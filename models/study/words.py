"""The words of an encoded pair and their pieces, the units of word order, word parts and equal terms."""

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

    word_of: (n,) the word of each token, −1 for special tokens. in_title: (words,) bool. pieces: the token
    ids of each word. BERT's pre-tokenizer splits a text into words; "##" marks the later pieces of a word.
    """

    word_of: Ints
    in_title: NDArray[np.bool_]
    pieces: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tokenizer: PairTokenizer, pair: EncodedPair) -> Words:
        """Return the words of one encoded pair."""
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
        """Return the words of the query and those of the title, in order."""
        return np.flatnonzero(~self.in_title), np.flatnonzero(self.in_title)

    @cached_property
    def matches(self) -> list[tuple[int, int]]:
        """Return (query word, title word) for every pair of equal words."""
        query, title = self.texts
        return [(int(a), int(b)) for a in query for b in title if self.pieces[a] == self.pieces[b]]

    def attention(self, probabilities: Floats32) -> Floats32:
        """Return the attention from word to word: (heads, n, n) → (heads, words, words).

        Attention to a word is the sum over its pieces, attention from a word is the mean (Clark et al. 2019,
        §4.1), so that a split word counts as one.
        """
        member = (self.word_of[:, None] == np.arange(len(self))).astype(np.float32)  # (n, words)
        return np.asarray((member / member.sum(0)).T @ (probabilities @ member), np.float32)

    def whole_attention(self, probabilities: Floats32) -> Floats32:
        """Return the attention with [CLS] and each [SEP] as words too: [CLS], query, [SEP], title, [SEP]."""
        starts = np.flatnonzero((self.word_of < 0) | (np.diff(self.word_of, prepend=-2) != 0))
        unit = np.searchsorted(starts, np.arange(len(self.word_of)), side="right") - 1
        member = (unit[:, None] == np.arange(len(starts))).astype(np.float32)
        return np.asarray((member / member.sum(0)).T @ (probabilities @ member), np.float32)
