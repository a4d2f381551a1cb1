"""Makes the training data from the raw files of public sources, which public.yaml lists by SHA-256.

`prepare` writes exactly the data that the shipped model was trained on, sampled pairs included: `prepared` in
public.yaml holds the SHA-256 of each file, and `fetch` compares. MSRD's movies are used unchanged.

ESCI (Reddy et al. 2022, arXiv:2206.06588): what people searched for on Amazon, and products judged for it. An
irrelevant product was at least retrieved for the query, so it gets grade 1; grade 0 is a product of another
query. Chorus: electronics of the Icecat catalogue, rated from 0 to 3 for 135 shop queries by up to three
people; its product text is under Icecat's Open Content License, so train on it and do not copy it.
DBpedia-Entity v2 (Hasibi et al., SIGIR 2017): entities judged from 0 to 2 by a crowd, whose agreement makes
five grades of three. ARCS (Socrata, 2015): data sets of public catalogues, judged from 0 to 3.
"""

import csv
import gzip
import hashlib
import json
import random
import statistics
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from models.files import write_whole
from models.training.shipped.judged import Judged

Pair = tuple[str, str, int]
"""Query, title, grade from 0 to 4."""

ESCI_RATINGS = {100: 4, 10: 3, 1: 2, 0: 1}
ESCI_LABELS = {"E": 4, "S": 3, "C": 2, "I": 1}
UNRELATED_PER_QUERY = 8

AGREED = 0.4
"""If the crowd of DBpedia-Entity agrees at least so much, a 2 counts as exact."""

COPIED = {
    "esci_us_150q/products.json.gz": "esci_us_150q/ubi_ecommerce_products.json.gz",
    "msrd_movies/movies-corpus.jsonl.gz": "msrd_movies/movies-corpus.jsonl.gz",
    "msrd_movies/movies-judgments.tsv.gz": "msrd_movies/movies-judgments.tsv.gz",
}


def prepare(raw: Path, out: Path) -> None:
    """Write every file that `judged` reads into `out`. raw: the files of public.yaml, each as SOURCE/NAME."""
    for copy, original in COPIED.items():
        write_whole(out / copy, (raw / original).read_bytes())
    esci, chorus = raw / "esci_us_150q", raw / "chorus_icecat"
    judged = merged(  # a pair that two sources judged is listed under the first
        {
            "esci_us_150q": esci_pairs(esci),
            "esci_us_150q:random_neg": esci_unrelated(esci),
            "esci_extra": esci_extra(esci),
            "chorus_icecat": chorus_pairs(chorus),
            "dbpedia_entity_v2": dbpedia_pairs(raw / "dbpedia_entity_v2"),
            "socrata_arcs": socrata_pairs(raw / "socrata_arcs"),
        }
    )
    lines = "".join(f"{json.dumps(asdict(pair), ensure_ascii=False)}\n" for pair in judged)
    write_whole(out / "graded.jsonl.gz", gzip.compress(lines.encode(), mtime=0))


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


def fold_of(query: str) -> int:
    """Return a query's fold (0 to 9): SHA-1 of its lower-case UTF-8, as a big-endian number, modulo 10."""
    return int.from_bytes(hashlib.sha1(query.lower().encode()).digest()) % 10


def grade_of_votes(votes: Sequence[int]) -> int:
    """Return the grade (0 to 4) of votes from 0 to 3, by their mean: 0, (0, 1], (1, 2), [2, 3), 3."""
    total, count = sum(votes), len(votes)
    if total <= count:
        return 0 if total == 0 else 1
    if total < 3 * count:
        return 2 if total < 2 * count else 3
    return 4


def esci_pairs(folder: Path) -> Iterator[Pair]:
    """Yield the pairs of the 150 judged queries, in the file's order."""
    with gzip.open(folder / "ubi_ecommerce_products.json.gz", "rt", encoding="utf-8") as file:
        titles = {product["asin"]: product["title"] for product in map(json.loads, file)}
    judgments = json.loads((folder / "esci_us_judgments.json").read_text(encoding="utf-8"))
    for judged in judgments["judgmentRatings"]:
        for rating in judged["ratings"]:
            yield judged["query"], titles[rating["docId"]], ESCI_RATINGS[int(float(rating["rating"]))]


def esci_unrelated(folder: Path) -> Iterator[Pair]:
    """Yield each of the 150 queries with products of others that share no word with it: grade 0.

    The seed makes them the same every time, unless Python changes random.choice.
    """
    own: dict[str, set[str]] = {}
    for query, title, _ in esci_pairs(folder):
        own.setdefault(query, set()).add(title)
    titles = sorted(set().union(*own.values()))
    rng = random.Random(7)
    for query in sorted(own):
        words = set(query.lower().split())
        drawn = 0
        while drawn < UNRELATED_PER_QUERY:
            title = rng.choice(titles)
            if title not in own[query] and words.isdisjoint(title.lower().split()):
                drawn += 1
                yield query, title, 0


def esci_extra(folder: Path) -> Iterator[Pair]:
    """Yield the pairs of other queries."""
    for name in ("esci.csv", "sample_2c_full_data.csv"):
        for row in _csv_rows(folder / name):
            yield row["query"], row["product_title"], ESCI_LABELS[row["esci_label"][0]]


def chorus_pairs(folder: Path) -> Iterator[Pair]:
    """Yield the rated pairs, graded by the three ratings if there are three, else by the agreed one."""
    titles: dict[str, str] = {}
    for part in (1, 2, 3, 4):
        with zipfile.ZipFile(folder / f"{part}.json.zip") as archive:
            products: list[dict[str, Any]] = json.loads(archive.read(f"{part}.json"))
            titles |= {product["id"]: product["title"] for product in products}
    votes = {
        (row["query"], row["docid"]): [int(row[f"agent_{agent}_rating"]) for agent in (1, 2, 3)]
        for row in _csv_rows(folder / "Broad_Query_Set_individual_ratings.csv")
    }
    for row in _csv_rows(folder / "Broad_Query_Set_rated.csv"):
        query, product = row["query"], row["docid"]
        yield query, titles[product], grade_of_votes(votes.get((query, product), [int(row["rating"])]))


def dbpedia_pairs(folder: Path) -> Iterator[Pair]:
    """Yield every judged entity, in the file's order."""
    texts = dict(_tab_rows(folder / "queries-v2.txt"))
    agreement = {
        (query, entity): crowd for query, entity, crowd, _ in _tab_rows(folder / "annotator_agreements.tsv")
    }
    for query, _, entity, grade in _tab_rows(folder / "qrels-v2.txt"):
        title = unquote(entity.removeprefix("<dbpedia:").removesuffix(">")).replace("_", " ")
        yield texts[query], title, five_grades(int(grade), float(agreement[query, entity]))


def five_grades(grade: int, agreement: float) -> int:
    """Return the grade (0 to 4) of a 0, a 1 or a 2, by how far the crowd agreed on it."""
    if grade == 0:
        return 0 if agreement == 1 else 1
    if grade == 1:
        return 2
    return 4 if agreement >= AGREED else 3


def socrata_pairs(folder: Path) -> Iterator[Pair]:
    """Yield every judged data set, in the file's order; a data set that was judged twice comes twice."""
    for row in _csv_rows(folder / "all.csv"):
        votes = [int(vote) for vote in row["relevance"].split()]
        yield row["query"], row["name"], grade_of_votes([vote for vote in votes if vote >= 0])


def _csv_rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _tab_rows(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n").split("\t")
