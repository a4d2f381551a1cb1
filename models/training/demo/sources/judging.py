"""Rules that every judged source shares: a grade from votes, one pair from repeated ones, a query's fold."""

import hashlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

from models.training.data import Judged

Pair = tuple[str, str, int]  # query, title, grade from 0 to 4


def grade_of_votes(votes: Sequence[int]) -> int:
    """Return the grade (0 to 4) of votes from 0 to 3, by their mean: 0, (0, 1], (1, 2), [2, 3), 3."""
    total, count = sum(votes), len(votes)
    if total <= count:
        return 0 if total == 0 else 1
    if total < 3 * count:
        return 2 if total < 2 * count else 3
    return 4


def fold_of(query: str) -> int:
    """Return a query's fold (0 to 9): SHA-1 of its lower-case UTF-8, as a big-endian number, modulo 10."""
    return int.from_bytes(hashlib.sha1(query.lower().encode()).digest()) % 10


def merged(sources: Mapping[str, Iterable[Pair]]) -> list[Judged]:
    """Return each (query, title) once, in order of first occurrence, with the lower median of its grades."""
    first: dict[tuple[str, str], str] = {}
    grades: dict[tuple[str, str], list[int]] = {}
    for source, pairs in sources.items():
        for query, title, grade in pairs:
            first.setdefault((query, title), source)
            grades.setdefault((query, title), []).append(grade)
    return [
        Judged(query, title, statistics.median_low(grades[query, title]), source, fold_of(query))
        for (query, title), source in first.items()
    ]
