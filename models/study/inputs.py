"""Labelled pairs for a study, read in bounded memory and refused where no study could be made of them."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from models.errors import ModelError
from models.quality.labelled import LabelledPair, iter_labelled
from models.study.base import Judged

LEAST_QUERIES = 10
"""Intervals resample whole queries; with fewer than this they would say nothing."""


def read_judged(path: Path, *, grades: int, most_pairs: int, seed: int) -> Judged:
    """The pairs of a file, or of as many of its queries, drawn by `seed`, as make at most `most_pairs` pairs.

    Raises ModelError for a file that cannot be read, a wrong row, fewer than LEAST_QUERIES queries, or pairs
    that are all of one grade.
    """
    kept, rows = sample_queries(iter_labelled(path, grades=grades), most_pairs, seed)
    data = Judged.of(kept, str(path))
    if len(data.queries) < LEAST_QUERIES:
        raise ModelError(
            f"{path} holds {len(data.queries)} {'query' if len(data.queries) == 1 else 'queries'}"
            + (f" that fit into {most_pairs:,} pairs" if rows > len(kept) else "")
            + f"; a study needs at least {LEAST_QUERIES}, because its intervals resample whole queries"
        )
    if (data.grade == data.grade[0]).all():
        raise ModelError(
            f"{path}: every pair has grade {data.grade[0]}; a study needs pairs of different grades"
        )
    if rows > len(kept):
        note = f"whole queries drawn by seed {seed}, at most {most_pairs:,} of the file's {rows:,} pairs"
        return replace(data, note=note)
    return data


def sample_queries(
    pairs: Iterable[LabelledPair], most_pairs: int, seed: int
) -> tuple[list[LabelledPair], int]:
    """All pairs of the queries with the lowest SHA-256 of "{seed}:{query}", as many as fit; in the file's
    order.

    In one pass, holding little more than what is kept. Returns the pairs and how many there were.
    """
    kept: dict[bytes, list[tuple[int, LabelledPair]]] = {}
    highest: list[tuple[int, bytes]] = []  # a heap, the highest digest first
    limit: int | None = None  # digests from here on are out
    held = rows = 0
    for rows, pair in enumerate(pairs, start=1):
        digest = hashlib.sha256(f"{seed}:{pair.query}".encode("utf-8", "surrogatepass")).digest()
        number = int.from_bytes(digest)
        if limit is not None and number >= limit:
            continue
        if digest not in kept:
            kept[digest] = []
            heapq.heappush(highest, (-number, digest))
        kept[digest].append((rows, pair))
        held += 1
        while held > most_pairs:
            negative, out = heapq.heappop(highest)
            held -= len(kept.pop(out))
            limit = -negative
    ordered = sorted((entry for group in kept.values() for entry in group), key=lambda entry: entry[0])
    return [pair for _, pair in ordered], rows


def spread_over_queries(query_of: np.ndarray, most: int, seed: int) -> list[int]:
    """At most `most` pairs, one of each query in turn, ascending. query_of: (n,) the query of each pair."""
    rng = np.random.default_rng([seed, 5])
    shuffled = rng.permutation(len(query_of))
    turns: dict[int, int] = {}
    turn = np.empty(len(query_of), np.int64)
    for i in shuffled:
        query = int(query_of[i])
        turn[i] = turns.get(query, 0)
        turns[query] = turn[i] + 1
    return sorted(int(i) for i in sorted(shuffled, key=lambda i: turn[i])[:most])


def roughly(data: Judged, pairs: int, titles: int, seed: int) -> Judged:
    """At most `pairs` pairs: some `titles` of each query, of all queries or as many as that allows."""
    if len(data) <= pairs:
        return data
    rng = np.random.default_rng([seed, 11])
    drawn = rng.permutation(len(data.queries))[: max(pairs // titles, LEAST_QUERIES)]
    rows = np.flatnonzero(np.isin(data.query_of, drawn))
    kept = rows[spread_over_queries(data.query_of[rows], pairs, seed)]
    labelled = [
        LabelledPair(query, title, int(grade))
        for (query, title), grade in ((data.pairs[i], data.grade[i]) for i in kept.tolist())
    ]
    return Judged.of(labelled, data.source, f"{len(data):,} pairs cut to {len(kept)} for --quick")


def check_apart(data: Judged, holdout: Judged) -> None:
    """Raises ModelError where a held-out query is also among those that the study searches by."""
    shared = sorted(set(data.queries) & set(holdout.queries))
    if shared:
        raise ModelError(
            f"{holdout.source} shares {len(shared)} {'query' if len(shared) == 1 else 'queries'} with "
            f"{data.source} (such as {shared[0][:40]!r}); held-out queries must take no part in the study"
        )
