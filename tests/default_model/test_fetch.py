"""Fetching the training data: cut-off runs go on, and a stranger trains on the same pairs, one for one."""

import csv
import gzip
import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from default_model.fetch import fetch, judged_pairs
from default_model.groups import fold_of
from default_model.mixture import MovieQuery, read_judged, read_movies
from default_model.multilingual import read_lists
from headroom.models.errors import ModelError

pytestmark = pytest.mark.more

COMMIT = "0123456789" * 4
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


class Host(ThreadingHTTPServer):
    """Serves `files` by path; those of `cut_short` break off in the middle."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.cut_short: set[str] = set()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:5] if self.path in self.server.cut_short else content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Host() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_raw(tmp_path / "origin")


@pytest.fixture
def public(host: Host, raw: Path) -> dict[str, Any]:
    """A few rows of every source, on the host and listed as public.yaml does."""
    repositories = []
    for folder in sorted(raw.iterdir()):
        contents = {f"data/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
        for path, content in contents.items():
            host.files[f"/someone/{folder.name}/{COMMIT}/{path}"] = content
        files = [
            {"path": path, "sha256": hashlib.sha256(content).hexdigest()}
            for path, content in contents.items()
        ]
        row = {"source": folder.name, "repository": f"someone/{folder.name}", "commit": COMMIT}
        repositories.append(row | {"licence": "MIT", "files": files})
    lines = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in judged_pairs(raw))
    phrases = "책상 조명 켜 줄래\t책상 조명 켜기\t4\n오늘 몇 도니\t오늘 기온\t2\n".encode()
    host.files[f"/someone/phrases/{COMMIT}/deep/v1.txt"] = phrases
    file = {"path": "deep/v1.txt", "name": "sae4k_v1.txt", "sha256": hashlib.sha256(phrases).hexdigest()}
    listed = {
        "set": "sae4k",
        "repository": "someone/phrases",
        "commit": COMMIT,
        "licence": "",
        "files": [file],
    }
    graded = hashlib.sha256(lines.encode()).hexdigest()
    return {"repositories": repositories, "graded": graded, "lists": [listed]}


AGREEMENTS = f"/someone/dbpedia_entity_v2/{COMMIT}/data/annotator_agreements.tsv"


def test_a_first_run_gets_the_data_and_a_later_one_only_what_is_damaged(
    host: Host, public: dict[str, Any], raw: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    fetch(public, data, server=host.url)
    assert sorted(host.requests) == sorted(host.files)
    judged = read_judged(data, range(10))
    assert judged == judged_pairs(raw)
    assert list(dict.fromkeys(pair.source for pair in judged)) == [
        "esci_us_150q",
        "esci_us_150q:random_neg",
        "esci_extra",
        "chorus_icecat",
        "dbpedia_entity_v2",
        "socrata_arcs",
    ]
    heat = "Heat (1995) , A B"
    cold = "Cold (1995) , A B"
    assert read_movies(data) == [MovieQuery("heat", [heat], [cold])]
    lists = [pairs for fold in range(10) for pairs in read_lists(data, "sae4k", [fold])]
    assert sorted((pairs[0].query, pairs[0].title, pairs[0].grade) for pairs in lists) == [
        ("오늘 몇 도니", "오늘 기온", 4),
        ("책상 조명 켜 줄래", "책상 조명 켜기", 4),
    ]

    host.requests.clear()
    fetch(public, data, server=host.url)
    assert host.requests == []

    (data / "dbpedia_entity_v2" / "annotator_agreements.tsv").write_bytes(b"")
    (data / "graded.jsonl.gz").write_bytes(b"")
    fetch(public, data, server=host.url)
    assert host.requests == [AGREEMENTS]
    assert read_judged(data, range(10)) == judged


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("missing", "HTTP Error 404"), ("cut short", "invalid hash"), ("changed", "invalid hash")],
)
def test_a_file_that_cannot_be_had_unchanged_is_named_and_the_next_run_goes_on_with_it(
    host: Host, public: dict[str, Any], tmp_path: Path, fault: str, reason: str
) -> None:
    content = host.files.pop(AGREEMENTS)
    if fault != "missing":
        host.files[AGREEMENTS] = content + (b"more" if fault == "changed" else b"")
    host.cut_short = {AGREEMENTS} if fault == "cut short" else set()
    with pytest.raises(ModelError, match=f"{AGREEMENTS}: {reason}"):
        fetch(public, tmp_path / "data", server=host.url)
    assert not list((tmp_path / "data" / "dbpedia_entity_v2").iterdir())

    before = set(host.requests)
    host.files[AGREEMENTS] = content
    host.cut_short = set()
    host.requests.clear()
    fetch(public, tmp_path / "data", server=host.url)
    assert set(host.requests) == {*host.files} - before | {AGREEMENTS}


def test_a_test_query_stays_a_test_query() -> None:
    assert [fold_of(query) for query in ("t towels kitchen", "sales tax", "mama koala")] == [7, 1, 2]
    assert fold_of("Sales TAX") == fold_of("sales tax")
