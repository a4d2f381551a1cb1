"""The values that every study works with: head weights, graded pairs and progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.quality.labelled import LabelledPair

Matrix = NDArray[np.float32]
"""Head weights (layers, heads): 1 keeps a head, 0 removes it; scales above 1 are allowed here."""


@dataclass(frozen=True)
class Judged:
    """n graded query–title pairs, and the query that each belongs to.

    pairs: the (query, title) of each. grade: (n,) int64 from 0. query_of: (n,) int64, numbered in order of
    first appearance. queries: the texts of the queries. source: the name of the data in the report.
    note: says what was left out when the file was read, "" if nothing was.
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
