"""The values that every study works with: heads and their weights, graded pairs, progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.classifier import Classifier
from models.quality.labelled import LabelledPair

Matrix = NDArray[np.float32]
"""Head weights (layers, heads): 1 keeps a head, 0 removes it."""

Head = tuple[int, int]
"""(layer, head), numbered as before pruning."""

Heads = tuple[Head, ...]


def held_heads(classifier: Classifier) -> Heads:
    """Return the heads that the checkpoint still holds, ascending."""
    return tuple((layer, head) for layer, kept in enumerate(classifier.config.kept_heads) for head in kept)


def weights_without(gone: Sequence[Head], shape: tuple[int, int]) -> Matrix:
    """Return head weights (layers, heads): 0 for the heads `gone`, 1 for all others."""
    weights = np.ones(shape, np.float32)
    for head in gone:
        weights[head] = 0
    return weights


@dataclass(frozen=True)
class Judged:
    """n graded query–title pairs, and the query that each belongs to.

    pairs: the (query, title) of each. grade: (n,) int64 from 0. query_of: (n,) int64, numbered in order of
    first appearance. queries: the texts of the queries. source: the name of the data in the report. note:
    says what was left out when the file was read, "" if nothing was.
    """

    pairs: tuple[tuple[str, str], ...]
    grade: NDArray[np.int64]
    query_of: NDArray[np.int64]
    queries: tuple[str, ...]
    source: str
    note: str = ""

    @classmethod
    def of(cls, labelled: Sequence[LabelledPair], source: str, note: str = "") -> Judged:
        """Number the queries of labelled pairs as they appear. source, note: shown in the report."""
        numbers: dict[str, int] = {}
        query_of = np.array([numbers.setdefault(pair.query, len(numbers)) for pair in labelled], np.int64)
        return cls(
            tuple((pair.query, pair.title) for pair in labelled),
            np.array([pair.grade for pair in labelled], np.int64),
            query_of,
            tuple(numbers),
            source,
            note,
        )

    def take(self, rows: Sequence[int], note: str = "") -> Judged:
        """Return some of the pairs, with their queries numbered anew."""
        labelled = [LabelledPair(*self.pairs[row], int(self.grade[row])) for row in rows]
        return Judged.of(labelled, self.source, note)

    def __len__(self) -> int:
        return len(self.pairs)

    @cached_property
    def ranked_queries(self) -> int:
        """Return how many queries have titles of different grades: those that NDCG@10 rests on."""
        pairs = np.unique(np.stack([self.query_of, self.grade]), axis=1)
        return int(np.count_nonzero(np.bincount(pairs[0]) > 1))


class Progress(Protocol):
    """Receives how far a study is."""

    def start(self, what: str, total: int) -> None:
        """Begin the stage `what` of `total` steps; the stage before it is done."""

    def advance(self, steps: int = 1) -> None:
        """Count steps of the current stage as done."""


class Silent:
    """Ignores all progress."""

    def start(self, what: str, total: int) -> None: ...

    def advance(self, steps: int = 1) -> None: ...
