"""Reads the labelled pairs of a study in bounded memory, and refuses pairs that no study can use."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from models.errors import ModelError
from models.quality.bootstrap import MIN_QUERIES
from models.quality.labelled import DEFAULT, Columns, LabelledPair, iter_labelled, query_key
from models.study.base import Judged

MAX_PAIRS = 20_000
"""Of a larger file, a sample of whole queries is used."""


def read_judged(
    path: Path,
    *,
    grades: int,
    seed: int,
    max_pairs: int = MAX_PAIRS,
    labels: Sequence[str] = (),
    columns: Columns = DEFAULT,
) -> Judged:
    """Read the pairs of a file; if there are more than `max_pairs`, those of some queries drawn by `seed`.

    labels, columns: as in `read_labelled`.
    Raises ModelError if the file cannot be read, a row is wrong, there are fewer than MIN_QUERIES queries, or
    all pairs have the same grade.
    """
    read = partial(iter_labelled, path, grades=grades, labels=labels, columns=columns)
    kept, rows = sample_queries(read, max_pairs, seed)
    data = Judged.of(kept, str(path))
    if len(data.queries) < MIN_QUERIES:
        raise ModelError(
            f"{path} holds {len(data.queries)} {'query' if len(data.queries) == 1 else 'queries'}"
            + (f" that fit into {max_pairs:,} pairs" if rows > len(kept) else "")
            + f"; a study needs at least {MIN_QUERIES}, because its intervals resample whole queries"
        )
    if (data.grade == data.grade[0]).all():
        raise ModelError(
            f"{path}: every pair has grade {data.grade[0]}; a study needs pairs of different grades"
        )
    if rows > len(kept):
        note = f"whole queries drawn by seed {seed}, at most {max_pairs:,} of the file's {rows:,} pairs"
        return replace(data, note=note)
    return data


def sample_queries(
    read: Callable[[], Iterable[LabelledPair]], max_pairs: int, seed: int
) -> tuple[list[LabelledPair], int]:
    """Return all pairs of the queries with the lowest SHA-256 of "{seed}:{query}", as many as fit, in the
    file's order; and how many pairs there were.

    read: yields the file's pairs; it is called twice, so that only queries and returned pairs take memory.
    """

    def digest(query: str) -> bytes:
        return hashlib.sha256(f"{seed}:{query}".encode("utf-8", "surrogatepass")).digest()

    sizes = Counter(pair.query for pair in read())
    kept: set[str] = set()
    room = max_pairs
    for query in sorted(sizes, key=digest):
        room -= sizes[query]
        if room < 0:
            break
        kept.add(query)
    return [pair for pair in read() if pair.query in kept], sizes.total()


def spread_over_queries(query_of: np.ndarray, limit: int, seed: int) -> list[int]:
    """Return at most `limit` pairs, taken from each query in turn, ascending. query_of: (n,), by pair."""
    rng = np.random.default_rng([seed, 5])
    shuffled = rng.permutation(len(query_of))
    turns: dict[int, int] = {}
    turn = np.empty(len(query_of), np.int64)
    for i in shuffled:
        query = int(query_of[i])
        turn[i] = turns.get(query, 0)
        turns[query] = turn[i] + 1
    return sorted(int(i) for i in sorted(shuffled, key=lambda i: turn[i])[:limit])


def roughly(data: Judged, pairs: int, titles: int, seed: int) -> Judged:
    """Return at most `pairs` pairs: about `titles` per query, of as many queries as fit."""
    if len(data) <= pairs:
        return data
    rng = np.random.default_rng([seed, 11])
    drawn = rng.permutation(len(data.queries))[: max(pairs // titles, MIN_QUERIES)]
    rows = np.flatnonzero(np.isin(data.query_of, drawn))
    kept = rows[spread_over_queries(data.query_of[rows], pairs, seed)]
    return data.take(kept.tolist(), f"{len(data):,} pairs cut to {len(kept)} for --quick")


def check_apart(data: Judged, holdout: Judged) -> None:
    """Raise ModelError if a held-out query is also among the queries that the study searches on, be it with
    other capitals or spaces."""
    held_out = {query_key(query) for query in holdout.queries}
    shared = sorted(query for query in data.queries if query_key(query) in held_out)
    if shared:
        raise ModelError(
            f"{holdout.source} shares {len(shared)} {'query' if len(shared) == 1 else 'queries'} with "
            f"{data.source} (such as {shared[0][:40]!r}; capitals and spaces do not count); held-out "
            "queries must take no part in the study"
        )
