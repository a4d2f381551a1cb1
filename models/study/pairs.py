"""The graded pairs of a study: reads them in bounded memory, draws samples, and refuses what no study can
use."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from headroom.models.arrays import Bools, Ints
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.condense.words import has_jieba
from headroom.models.errors import ModelError, how_to_install
from headroom.models.quality.bootstrap import MIN_QUERIES, minimum_queries
from headroom.models.quality.labelled import (
    DEFAULT,
    HIGHEST_GRADE,
    Columns,
    LabelledPair,
    Rows,
    columns_of_second,
    iter_labelled,
    numbers_of_lists,
    numbers_of_queries,
    query_key,
    settled,
)

MAX_PAIRS = 20_000
"""Of a larger file, a sample of whole queries is used."""

CHINESE = 0.25
"""If at least this share of the pairs is Chinese, jieba says where the words of the data end."""

_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
_JAPANESE = re.compile("[\u3040-\u30ff]")


@dataclass(frozen=True)
class Judged:
    """n graded query–title pairs.

    source: the name of the data in the report. note: says what was left out when the file was read, "" if
    nothing was.
    """

    labelled: Sequence[LabelledPair]
    source: str
    note: str = ""

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Return the (query, title) of each."""
        return [(one.query, one.title) for one in self.labelled]

    @cached_property
    def grade(self) -> Ints:
        """Return the grade of each, (n,) from 0."""
        return np.array([one.grade for one in self.labelled], np.int64)

    @cached_property
    def queries(self) -> list[str]:
        """Return the first spelling of each query, in order of first appearance."""
        spelling: dict[str, str] = {}
        for one in self.labelled:
            spelling.setdefault(query_key(one.query), one.query)
        return list(spelling.values())

    @cached_property
    def query_of(self) -> Ints:
        """Return the number of each pair's query, (n,)."""
        return np.array(numbers_of_queries(self.labelled), np.int64)

    @cached_property
    def list_of(self) -> Ints:
        """Return the number of each pair's list, (n,): the titles of one spelling of a query."""
        return np.array(numbers_of_lists(self.labelled), np.int64)

    @cached_property
    def is_chinese(self) -> bool:
        """Return whether at least the share CHINESE of the pairs has Chinese characters and no Japanese
        ones."""
        chinese = sum(map(_is_chinese, self.labelled))
        return chinese >= CHINESE * len(self)

    @cached_property
    def ranked_queries(self) -> int:
        """Return how many queries have titles of different grades."""
        return int(np.count_nonzero(self.differ_in_grade))

    @cached_property
    def differ_in_grade(self) -> Bools:
        """Return of each query whether the titles of one of its lists have different grades, (queries,)."""
        columns = np.stack([self.query_of, self.list_of, self.grade])
        queries, lists, _ = np.unique(columns, axis=1)
        differs = np.zeros(len(self.queries), np.bool_)
        differs[queries[(np.bincount(lists) > 1)[lists]]] = True
        return differs

    def take(self, rows: Sequence[int], note: str = "") -> Judged:
        """Return some of the pairs, with their queries numbered anew."""
        return Judged([self.labelled[row] for row in rows], self.source, note)

    def spread(self, limit: int, seed: int) -> list[int]:
        """Return the rows of at most `limit` pairs, taken from each query in turn, ascending."""
        shuffled, turn = self.in_turns(seed)
        rows: list[int] = np.sort(shuffled[np.argsort(turn, kind="stable")[:limit]]).tolist()
        return rows

    def in_turns(self, seed: int) -> tuple[Ints, Ints]:
        """Return all rows in random order, (n,), and of each how many before it have the same query, (n,)."""
        shuffled = np.random.default_rng([seed, 5]).permutation(len(self))
        by_query = np.argsort(self.query_of[shuffled], kind="stable")
        sizes = np.bincount(self.query_of)
        turn = np.empty_like(shuffled)
        turn[by_query] = np.arange(len(self)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return shuffled, turn

    def __len__(self) -> int:
        return len(self.labelled)


def _is_chinese(pair: LabelledPair) -> bool:
    text = f"{pair.query} {pair.title}"
    return _CHINESE.search(text) is not None and _JAPANESE.search(text) is None


def check_words(kind: str, data: Judged) -> None:
    """Raise ModuleNotFoundError if a study of this kind has to find Chinese words and jieba is missing."""
    if kind in ("roles", "all") and data.is_chinese and not has_jieba():
        raise ModuleNotFoundError(
            f"headroom study {kind} of Chinese texts needs jieba, which finds their words: "
            f"{how_to_install('study')}"
        )


def read_both(
    kind: str,
    config: ModelConfig,
    data: Path | Rows,
    holdout: Path | Rows | None,
    *,
    columns: Columns,
    seed: int,
) -> tuple[Judged, Judged | None]:
    """Read the pairs of a study of a model, and those of other queries, on which a search tests.

    holdout: a file that lacks a named column may have it under the usual name.
    Raises what `read_for`, `check_words` and `check_apart` raise.
    """
    judged = read_for(config, data, columns=columns, seed=seed)
    check_words(kind, judged)
    if holdout is None:
        return judged, None
    held_out = read_for(config, holdout, columns=columns_of_second(holdout, columns), seed=seed)
    check_apart(judged, held_out)
    return judged, held_out


def read_for(config: ModelConfig, path: Path | Rows, *, seed: int, columns: Columns = DEFAULT) -> Judged:
    """Read the pairs of a file for a study of a model; arguments and errors as in `read_judged`.

    A model with one score takes whole numbers up to HIGHEST_GRADE, and is refused data in which no query has
    titles of different grades: an order is all that it can be judged by.
    """
    if config.is_graded:
        grades = len(config.labels)
        return read_judged(path, grades=grades, labels=config.labels, columns=columns, seed=seed)
    data = read_judged(path, grades=HIGHEST_GRADE + 1, columns=columns, seed=seed)
    if not data.ranked_queries:
        raise ModelError(
            f"{path}: no query has titles of different grades, and a model with one score is judged by their "
            "order"
        )
    return data


def read_judged(
    path: Path | Rows,
    *,
    grades: int,
    seed: int,
    max_pairs: int = MAX_PAIRS,
    labels: Sequence[str] = (),
    columns: Columns = DEFAULT,
) -> Judged:
    """Read the pairs of a file; if there are more than `max_pairs`, those of some queries drawn by `seed`.

    labels: the names of the grades, least relevant first. columns: which columns hold what.
    Raises ModelError if the file cannot be read, a row is wrong, there are fewer than MIN_QUERIES queries, or
    all pairs have the same grade.
    """
    read = partial(iter_labelled, path, grades=grades, labels=labels, columns=columns)
    kept, rows = sample_queries(read, max_pairs, seed)
    data = Judged(settled(kept, str(path)), str(path))
    if len(data.queries) < MIN_QUERIES:
        raise ModelError(
            f"{path}: a study needs at least {MIN_QUERIES} queries (its intervals resample whole ones), and "
            f"there are {len(data.queries)} within {max_pairs:,} pairs"
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
    """Return all pairs of the queries with the lowest SHA-256 of "{seed}:{key}", as many as fit, in the
    file's order; and how many pairs there were. key: of `query_key`.

    read: yields the file's pairs; it is called twice, so that only queries and returned pairs take memory.
    """

    def digest(key: str) -> bytes:
        return hashlib.sha256(f"{seed}:{key}".encode("utf-8", "surrogatepass")).digest()

    sizes = Counter(query_key(pair.query) for pair in read())
    keys = sorted(sizes, key=digest)
    fitting = np.cumsum([sizes[key] for key in keys]) <= max_pairs
    kept = set(keys[: np.count_nonzero(fitting)])
    return [pair for pair in read() if query_key(pair.query) in kept], sizes.total()


def quick_sample(data: Judged, pairs: int, titles: int, seed: int) -> Judged:
    """Return some `titles` titles of each of so many queries that there are about `pairs` pairs; if all
    queries have fewer, more titles of each."""
    if len(data) <= pairs:
        return data
    order = np.random.default_rng([seed, 11]).permutation(len(data.queries))
    shuffled, turn = data.in_turns(seed)
    rows = shuffled[turn < titles]
    while len(rows) < pairs:
        titles += 1
        rows = shuffled[turn < titles]
    sizes = np.bincount(data.query_of[rows])[order]
    drawn = order[: max(1 + np.count_nonzero(np.cumsum(sizes) < pairs), MIN_QUERIES)]
    rows = np.sort(rows[np.isin(data.query_of[rows], drawn)])
    note = f"{len(rows):,} of {len(data):,} pairs, {len(drawn)} of {len(data.queries)} queries, for --quick"
    return data.take(rows.tolist(), note)


HELD_OUT = 1.5
"""`split` holds out so many times as many queries as the margin needs at least."""

HELD_OUT_SHARE = 2 / 3
"""`split` holds out at most this share of the queries with titles of different grades."""


def split(data: Judged, margin: float, seed: int) -> tuple[Judged, Judged]:
    """Return the pairs to search on and those to hold out, of other queries, drawn by `seed`.

    Held out are as many queries with titles of different grades as a test against the margin needs, and in
    proportion others. Raises ModelError if a side has fewer than MIN_QUERIES queries.
    """
    order = np.random.default_rng([seed, 17]).permutation(len(data.queries))
    needed = math.ceil(HELD_OUT * minimum_queries(margin))
    wanted = min(needed, math.ceil(HELD_OUT_SHARE * data.ranked_queries))
    count = int(np.searchsorted(np.cumsum(data.differ_in_grade[order]), wanted)) + 1
    is_held_out = np.isin(data.query_of, order[:count])
    parts = []
    for name, rows in (("searched", ~is_held_out), ("held out", is_held_out)):
        part = data.take(np.flatnonzero(rows).tolist(), data.note)
        parts.append(replace(part, source=f"{data.source} ({name})"))
    for part in parts:
        if len(part.queries) < MIN_QUERIES:
            raise ModelError(
                f"{data.source}: {len(data.queries)} queries are too few to hold some out; a study and its "
                f"test need {MIN_QUERIES} each"
            )
    return parts[0], parts[1]


def check_apart(data: Judged, holdout: Judged) -> None:
    """Raise ModelError if a held-out query is also among the queries that the study searches on, be it with
    other capitals or spaces."""
    held_out = {query_key(query) for query in holdout.queries}
    shared = sorted(query for query in data.queries if query_key(query) in held_out)
    if shared:
        raise ModelError(
            f"held-out queries must take no part in the study, and {holdout.source} shares "
            f"{len(shared)} with {data.source} (such as {shared[0][:40]!r}; capitals and spaces do not count)"
        )
