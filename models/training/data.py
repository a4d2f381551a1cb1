"""Reads the training data: text, product titles, and judged pairs with the fold of each query."""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRADES = ("irrelevant", "related", "partial", "close", "exact")
GRADE_MEANINGS = {
    "irrelevant": "another thing altogether",
    "related": "shares a word, a brand or a department with the query, but does not answer it",
    "partial": "goes with what was asked for: an accessory, a part, a complement",
    "close": "the right kind of thing, but something asked for differs: a substitute",
    "exact": "what was asked for",
}
TEST_FOLDS = (0, 1)
VALIDATION_FOLDS = (2, 3)
TRAINING_FOLDS = (4, 5, 6, 7, 8, 9)
REPORTED_FOLDS = {"validation": VALIDATION_FOLDS, "test": TEST_FOLDS}

Target = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """A pair with a person's grade (0 to 4) and the source it came from."""

    query: str
    title: str
    grade: int
    source: str
    fold: int


@dataclass(frozen=True, slots=True)
class Example:
    """A pair to learn from: `target` is a distribution over the grades, `weight` scales its loss."""

    query: str
    title: str
    target: Target
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Product:
    """A product's title, its brand, and its description."""

    title: str
    brand: str
    text: str


def graded_target(grade: float, *, smoothing: float = 0.06, grades: int = len(GRADES)) -> Target:
    """Return a grade between 0 and grades - 1 as a distribution over the grades.

    A whole grade gets all the mass and 2.25 gets three quarters on 2 and one on 3; then `smoothing` of the
    mass moves to the neighbours, so that a near miss costs less than a far one.
    """
    last = grades - 1
    exact = [max(0.0, 1.0 - abs(grade - at)) for at in range(grades)]
    mass = [(1.0 - smoothing) * share for share in exact]
    for at, share in enumerate(exact):
        below, above = max(at - 1, 0), min(at + 1, last)
        mass[below] += smoothing / 2 * share
        mass[above] += smoothing / 2 * share
    return tuple(mass)


def read_judged(data: Path, folds: Iterable[int]) -> list[Judged]:
    """Return the judged pairs of some folds. Each query is in one fold only."""
    wanted = frozenset(folds)
    rows = (Judged(**row) for row in _json_lines(data / "graded.jsonl.gz"))
    return [row for row in rows if row.fold in wanted]


def source_family(source: str) -> str:
    """Return the name that a source is reported under: ESCI's three parts are one."""
    return "esci" if source.startswith("esci") else source.split("_")[0]


def source_groups(rows: Sequence[Judged]) -> dict[str, list[int]]:
    """Return the row indices of each source family, of the "products" (ESCI and Chorus), and of "all"."""
    families = [source_family(row.source) for row in rows]
    groups = {
        name: [place for place, family in enumerate(families) if family == name]
        for name in sorted(set(families))
    }
    groups["products"] = [place for place, family in enumerate(families) if family in ("esci", "chorus")]
    groups["all"] = list(range(len(rows)))
    return {name: places for name, places in groups.items() if places}


def read_products(data: Path) -> list[Product]:
    """Return every product of ESCI and Icecat with its title, brand and description."""
    with gzip.open(data / "esci_us_150q" / "products.json.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    esci = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    products = [
        Product(
            row["title"],
            row["brand"] or "",
            f"{row['bullet_points'] or ''} {row['description'] or ''}".strip(),
        )
        for row in esci
    ]
    products += [
        Product(row["title"], row["supplier"] or "", row["short"] or "")
        for row in _json_lines(data / "chorus_icecat" / "products_titles.jsonl.gz")
    ]
    return [product for product in products if product.title]


def read_text(data: Path) -> dict[str, list[str]]:
    """Return lines for masked-language-model training, by source, in order: neighbours belong together."""
    text = {}
    for source in ("esci_us_150q", "chorus_icecat", "oewn_text"):
        with gzip.open(data / source / "text.txt.gz", "rt", encoding="utf-8") as file:
            text[source] = [line.strip() for line in file if line.strip()]
    movies = _json_lines(data / "msrd_movies" / "movies-corpus.jsonl.gz")
    text["msrd_movies"] = [line for row in movies for line in (row["title"], row["overview"]) if line]
    return text


def read_movies(data: Path) -> list[tuple[str, str, bool]]:
    """Movie-search judgments as (query, document, relevant): real queries, as people typed them."""
    documents = {
        row["id"]: _movie_document(row)
        for row in _json_lines(data / "msrd_movies" / "movies-corpus.jsonl.gz")
    }
    pairs = []
    with gzip.open(data / "msrd_movies" / "movies-judgments.tsv.gz", "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            _, query, document, grade = line.rstrip("\n").split("\t")
            if document in documents:
                pairs.append((query, documents[document], grade == "1"))
    return pairs


def _movie_document(row: dict[str, Any]) -> str:
    genres, actors = " ".join(row["genres"][:3]), ", ".join(row["actors"][:4])
    return f"{row['title']} ({row['year']}) {genres}, {actors}"


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
