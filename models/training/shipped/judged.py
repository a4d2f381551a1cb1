"""Reads the judged pairs that the shipped model is trained on and measured with, and their folds."""

import gzip
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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

    @property
    def family(self) -> str:
        """Return the name that the source is reported under: ESCI's three parts are one."""
        return "esci" if self.source.startswith("esci") else self.source.split("_")[0]


class MovieQuery(NamedTuple):
    """A query of a movie search with the movies that people found relevant, and those they did not."""

    query: str
    relevant: list[str]
    others: list[str]


def read_judged(data: Path, folds: Collection[int]) -> list[Judged]:
    """Return the judged pairs of some folds. Each query is in one fold only."""
    rows = (Judged(**row) for row in json_lines(data / "graded.jsonl.gz"))
    return [row for row in rows if row.fold in folds]


def source_groups(rows: Sequence[Judged]) -> dict[str, list[int]]:
    """Return the row indices of each source family, and of the "products" (ESCI and Chorus)."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.family].append(index)
    products = sorted(groups.get("esci", []) + groups.get("chorus", []))
    return dict(sorted(groups.items())) | ({"products": products} if products else {})


def read_movies(data: Path) -> list[MovieQuery]:
    """Return the queries of MSRD that have both relevant and other movies."""
    folder = data / "msrd_movies"
    movies = {}
    for row in json_lines(folder / "movies-corpus.jsonl.gz"):
        genres, actors = " ".join(row["genres"][:3]), ", ".join(row["actors"][:4])
        movies[row["id"]] = f"{row['title']} ({row['year']}) {genres}, {actors}"
    queries: dict[str, MovieQuery] = {}
    with gzip.open(folder / "movies-judgments.tsv.gz", "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            _, query, movie, grade = line.rstrip("\n").split("\t")
            if movie in movies:
                asked = queries.setdefault(query, MovieQuery(query, [], []))
                (asked.relevant if grade == "1" else asked.others).append(movies[movie])
    return [asked for asked in queries.values() if asked.relevant and asked.others]


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)
