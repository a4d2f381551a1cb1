"""The sequences that pairs are packed as: each pair whole, or what several share once, and their rest."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from headroom.models.checkpoint.tokenizer import EncodedPair, Ids


class Beginning(NamedTuple):
    """Tokens that pairs of one query and mask share: they see none of the pair's others, and those see them.

    Of a decoder, all before the title. Of an encoder whose query tokens see the query alone, the query.
    key: equal for equal tokens under equal masks. tokens: their number. start: how many of the pair's other
    tokens stand before them, such as [CLS].
    """

    key: Hashable
    tokens: int
    start: int = 0


class Sequences(NamedTuple):
    """The n sequences that pairs are packed as.

    ids: the tokens of each. lengths: (n,) int64, how many they are. pair: (n,) int64, its pair.
    prefix: (n,) int64, the sequence of what it shares with others, −1 for none.
    start: the `Beginning.start` of all.
    """

    ids: list[Ids]
    lengths: np.ndarray
    pair: np.ndarray
    prefix: np.ndarray
    start: int = 0

    @classmethod
    def of(cls, ids: list[Ids], pair: np.ndarray, prefix: np.ndarray, start: int = 0) -> "Sequences":
        """Return the sequences of these tokens."""
        return cls(ids, np.fromiter(map(len, ids), np.int64, len(ids)), pair, prefix, start)

    @property
    def positions(self) -> np.ndarray:
        """Return the position of each token in its pair, (T,) int64."""
        lengths = self.lengths
        starts = lengths.cumsum() - lengths
        first = np.where(self.prefix < 0, 0, lengths[self.prefix])
        if self.start:
            first[self.prefix[self.prefix >= 0]] = self.start
        positions: np.ndarray = np.arange(lengths.sum()) + (first - starts).repeat(lengths)
        if self.start:
            before = np.arange(self.start)
            positions[starts[self.prefix >= 0, None] + before] = before
        return positions

    def by_length(self) -> "Sequences":
        """Return the same sequences, the shortest first."""
        order = self.lengths.argsort(kind="stable")
        prefix = self.prefix[order]
        return Sequences(
            ids=[self.ids[index] for index in order.tolist()],
            lengths=self.lengths[order],
            pair=self.pair[order],
            prefix=np.where(prefix < 0, -1, order.argsort()[prefix]),
            start=self.start,
        )


def in_parts(pairs: Sequence[EncodedPair], beginnings: Sequence[Beginning], *, every: bool) -> Sequences:
    """Return each beginning that several pairs share as one sequence, and the rest of each pair.

    beginnings: one per pair, with one `start`. every: beginnings of single pairs are cut off too; those that
    do not stand first always are.
    """
    count = Counter(beginnings)
    before = beginnings[0].start
    sequence_of: dict[Beginning, int] = {}
    ids = list[Ids]()
    pair_of = list[int]()
    prefixes = list[int]()
    for number, (pair, beginning) in enumerate(zip(pairs, beginnings, strict=True)):
        own = pair.ids
        prefix = -1
        if beginning.tokens and (every or before or count[beginning] > 1):
            end = before + beginning.tokens
            own = pair.ids[end:]
            if before:
                own = np.concatenate([pair.ids[:before], own])
            if beginning not in sequence_of:
                sequence_of[beginning] = len(ids)
                ids.append(pair.ids[before:end])
                pair_of.append(number)
                prefixes.append(-1)
            prefix = sequence_of[beginning]
        ids.append(own)
        pair_of.append(number)
        prefixes.append(prefix)
    return Sequences.of(ids, np.array(pair_of), np.array(prefixes), before)
