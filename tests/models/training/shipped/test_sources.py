"""The converters: a stranger's data must be, pair for pair, what the shipped model was trained on."""

import csv
import gzip
import json
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from models.training.shipped.judged import MovieQuery, read_judged, read_movies
from models.training.shipped.sources import fold_of, prepare

COLOURS = ("red", "blue", "green", "white")
THINGS = ("lamp", "kettle", "towel", "drill")


def write_raw(root: Path) -> Path:
    """A few rows of every source, in the sources' own formats."""
    _write_esci(root / "esci_us_150q")
    _write_chorus(root / "chorus_icecat")
    _write_dbpedia(root / "dbpedia_entity_v2")
    (root / "socrata_arcs").mkdir(parents=True)
    votes = [["sales tax", "Tax: 2015", "0\n2\n2"], ["sales tax", "Parks", "0\n0\n-1\n0"]]
    _write_csv(root / "socrata_arcs" / "all.csv", ["query", "name", "relevance"], votes)
    (root / "msrd_movies").mkdir()
    films = [
        {"id": str(number), "title": title, "genres": [], "actors": ["A B"], "year": 1995}
        for number, title in enumerate(("Heat", "Cold"))
    ]
    _write_gzip(root / "msrd_movies" / "movies-corpus.jsonl.gz", [json.dumps(film) for film in films])
    judgments = ["query_id\tquery\tdoc_id\tgrade", "q1\theat\t0\t1", "q1\theat\t1\t0", "q2\tice\t1\t1"]
    _write_gzip(root / "msrd_movies" / "movies-judgments.tsv.gz", judgments)
    return root


def _write_esci(folder: Path) -> None:
    folder.mkdir(parents=True)
    products = [
        {
            "asin": f"{colour} {thing}",
            "title": f"{colour.title()} {thing.title()}\N{NO-BREAK SPACE}",
        }
        for thing in THINGS
        for colour in COLOURS
    ]
    _write_gzip(folder / "ubi_ecommerce_products.json.gz", [json.dumps(product) for product in products])
    gains = ("100.000", "10.000", "1.000", "0.000")
    ratings = [
        {
            "query": f"A {thing}",
            "ratings": [
                {"docId": f"{colour} {thing}", "rating": gain}
                for colour, gain in zip(COLOURS, gains, strict=True)
            ],
        }
        for thing in THINGS
    ]
    (folder / "esci_us_judgments.json").write_text(json.dumps({"judgmentRatings": ratings}))
    header = ["query", "product_title", "esci_label"]
    _write_csv(
        folder / "esci.csv", header, [["cup", "Mug, 2 pack", "Exact"], ["cup", "Saucer", "Complement"]]
    )
    _write_csv(folder / "sample_2c_full_data.csv", header, [["cup", "Bowl", "S"], ["cup", "Sock", "I"]])


def _write_chorus(folder: Path) -> None:
    folder.mkdir(parents=True)
    for part in range(1, 5):
        product = {"id": str(part), "title": f"Volta Kettle {part} l"}
        with zipfile.ZipFile(folder / f"{part}.json.zip", "w") as archive:
            archive.writestr(f"{part}.json", json.dumps([product]))
    rated = [["kettle", "1", "3"], ["kettle", "2", "2"], ["tea", "3", "1"]]
    _write_csv(folder / "Broad_Query_Set_rated.csv", ["query", "docid", "rating"], rated)
    header = ["query", "docid", "agent_1_rating", "agent_2_rating", "agent_3_rating"]
    _write_csv(folder / "Broad_Query_Set_individual_ratings.csv", header, [["kettle", "1", "3", "2", "3"]])


def _write_dbpedia(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "queries-v2.txt").write_text("Q-1\tcoffee with milk\n")
    (folder / "qrels-v2.txt").write_text(
        "Q-1\tQ0\t<dbpedia:Caf%C3%A9_au_lait>\t2\nQ-1\tQ0\t<dbpedia:AC/DC>\t0\n"
    )
    (folder / "annotator_agreements.tsv").write_text(
        "query\tentity\tcs_agr\texpert_agr\n"
        "Q-1\t<dbpedia:Caf%C3%A9_au_lait>\t0.3\t-\nQ-1\t<dbpedia:AC/DC>\t1.0\t1.0\n"
    )


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def _write_gzip(path: Path, lines: Sequence[str]) -> None:
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_raw(tmp_path / "raw")


def test_a_test_query_stays_a_test_query() -> None:
    assert [fold_of(query) for query in ("t towels kitchen", "sales tax", "mama koala")] == [7, 1, 2]
    assert fold_of("Sales TAX") == fold_of("sales tax")


def test_the_pipeline_reads_what_is_prepared(raw: Path, tmp_path: Path) -> None:
    prepare(raw, tmp_path / "data")

    judged = read_judged(tmp_path / "data", range(10))
    counts = Counter(row.source for row in judged)
    assert list(counts) == [
        "esci_us_150q",
        "esci_us_150q:random_neg",
        "esci_extra",
        "chorus_icecat",
        "dbpedia_entity_v2",
        "socrata_arcs",
    ]
    assert counts["esci_us_150q"] == 16
    assert counts["socrata_arcs"] == 2
    heat, cold = "Heat (1995) , A B", "Cold (1995) , A B"
    assert read_movies(tmp_path / "data") == [MovieQuery("heat", (heat,), (cold,))]
