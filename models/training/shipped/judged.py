"""Reads the judged pairs that the shipped model is trained on and measured with, and their folds."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.quality.labelled import LabelledPair

TEST_FOLDS = (0, 1)
VALIDATION_FOLDS = (2, 3)
TRAINING_FOLDS = (4, 5, 6, 7, 8, 9)
FOLDS = {"validation": VALIDATION_FOLDS, "test": TEST_FOLDS}


@dataclass(frozen=True, slots=True)
class Judged(LabelledPair):
    """A pair with a person's grade (0 to 4), the source it came from, and the fold of its query."""

    source: str
    fold: int


@dataclass(frozen=True, slots=True)
class MovieQuery:
    """A query of a movie search with the movies that people found relevant, and those they did not."""

    query: str
    relevant: tuple[str, ...]
    others: tuple[str, ...]


def read_judged(data: Path, folds: Iterable[int]) -> list[Judged]:
    """Return the judged pairs of some folds. Each query is in one fold only."""
    wanted = frozenset(folds)
    rows = (Judged(**row) for row in _json_lines(data / "graded.jsonl.gz"))
    return [row for row in rows if row.fold in wanted]


def source_family(source: str) -> str:
    """Return the name that a source is reported under: ESCI's three parts are one."""
    return "esci" if source.startswith("esci") else source.split("_")[0]


def by_query(rows: Sequence[Judged]) -> dict[str, list[list[Judged]]]:
    """Return the rows by source family, and within it by query."""
    groups: defaultdict[str, defaultdict[str, list[Judged]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[source_family(row.source)][row.query].append(row)
    return {family: list(queries.values()) for family, queries in groups.items()}


def source_groups(rows: Sequence[Judged]) -> dict[str, list[int]]:
    """Return the row indices of each source family, of the "products" (ESCI and Chorus), and of "all"."""
    families = [source_family(row.source) for row in rows]
    groups = {
        name: [index for index, family in enumerate(families) if family == name]
        for name in sorted(set(families))
    }
    groups["products"] = [index for index, family in enumerate(families) if family in ("esci", "chorus")]
    groups["all"] = list(range(len(rows)))
    return {name: indices for name, indices in groups.items() if indices}


def read_movies(data: Path) -> list[MovieQuery]:
    """Return the queries of MSRD that have both relevant and other movies."""
    folder = data / "msrd_movies"
    movies = {row["id"]: _movie(row) for row in _json_lines(folder / "movies-corpus.jsonl.gz")}
    found: defaultdict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    with gzip.open(folder / "movies-judgments.tsv.gz", "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            _, query, movie, grade = line.rstrip("\n").split("\t")
            if movie in movies:
                found[query][grade != "1"].append(movies[movie])
    return [
        MovieQuery(query, tuple(relevant), tuple(others))
        for query, (relevant, others) in found.items()
        if relevant and others
    ]


def _movie(row: dict[str, Any]) -> str:
    genres, actors = " ".join(row["genres"][:3]), ", ".join(row["actors"][:4])
    return f"{row['title']} ({row['year']}) {genres}, {actors}"


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
