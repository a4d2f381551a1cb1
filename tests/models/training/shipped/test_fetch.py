"""Fetching the training data: cut-off runs go on, and nothing wrong is ever trained on."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from models.training.shipped.fetch import (
    FetchFailed,
    Public,
    RawFile,
    Repository,
    difference,
    fetch,
    read_public,
)
from models.training.shipped.judged import read_judged
from models.training.shipped.sources import prepare
from tests.models.training.shipped.test_sources import write_raw

COMMIT = "0123456789" * 4
NO_PAUSES = (0.0, 0.0)


class Host(ThreadingHTTPServer):
    """Serves `files` by path; an answer in `faults` comes first: a status, or "cut short"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[int | str]] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Host

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        faults = self.server.faults.get(self.path, [])
        fault = faults.pop(0) if faults else None
        content = self.server.files.get(self.path)
        if isinstance(fault, int) or content is None:
            self.send_error(fault if isinstance(fault, int) else 404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if fault else content)

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
def public(host: Host, tmp_path: Path) -> Public:
    """A few rows of every source, on the host and listed as public.yaml does."""
    raw = write_raw(tmp_path / "origin")
    repositories = []
    for folder in sorted(raw.iterdir()):
        files = []
        for path in sorted(folder.iterdir()):
            content = path.read_bytes()
            host.files[f"/someone/{folder.name}/{COMMIT}/data/{path.name}"] = content
            files.append(
                RawFile(
                    path=f"data/{path.name}",
                    size_bytes=len(content),
                    sha256=hashlib.sha256(content).hexdigest(),
                )
            )
        repositories.append(
            Repository(
                source=folder.name,
                repository=f"someone/{folder.name}",
                commit=COMMIT,
                licence="MIT",
                files=tuple(files),
            )
        )
    prepared = tmp_path / "expected"
    prepare(raw, prepared)
    hashes = {
        path.relative_to(prepared).as_posix(): hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
        for path in prepared.rglob("*.gz")
    }
    return Public(repositories=tuple(repositories), prepared=hashes)


AGREEMENTS = f"/someone/dbpedia_entity_v2/{COMMIT}/data/annotator_agreements.tsv"


def test_a_first_run_gets_the_data_and_a_second_downloads_nothing(
    host: Host, public: Public, tmp_path: Path
) -> None:
    fetch(public, tmp_path / "data", server=host.url)
    assert sorted(host.requests) == sorted(host.files)
    assert read_judged(tmp_path / "data", range(10)) == read_judged(tmp_path / "expected", range(10))

    host.requests.clear()
    fetch(public, tmp_path / "data", server=host.url)
    assert host.requests == []


def test_a_fetch_that_was_cut_off_goes_on_where_it_was(host: Host, public: Public, tmp_path: Path) -> None:
    missing = host.files.pop(AGREEMENTS)
    with pytest.raises(FetchFailed):
        fetch(public, tmp_path / "data", server=host.url)
    before = set(host.requests)
    assert before < {*host.files, AGREEMENTS}
    half = tmp_path / "data" / "raw" / "dbpedia_entity_v2" / "annotator_agreements.tsv.partial"
    half.parent.mkdir(parents=True)
    half.write_bytes(missing[:5])

    host.files[AGREEMENTS] = missing
    host.requests.clear()
    fetch(public, tmp_path / "data", server=host.url)
    assert set(host.requests) == {*host.files} - before | {AGREEMENTS}
    assert not half.exists()


def test_a_file_that_changed_is_refused_and_not_kept(host: Host, public: Public, tmp_path: Path) -> None:
    host.files[AGREEMENTS] += b"more"
    with pytest.raises(FetchFailed) as refusal:
        fetch(public, tmp_path / "data", server=host.url, pauses=NO_PAUSES)
    message = str(refusal.value)
    assert "\n" not in message
    assert f"{host.url}{AGREEMENTS}" in message
    assert hashlib.sha256(host.files[AGREEMENTS]).hexdigest() in message
    assert hashlib.sha256(host.files[AGREEMENTS][:-4]).hexdigest() in message
    assert not (tmp_path / "data" / "raw" / "dbpedia_entity_v2").exists()
    assert host.requests.count(AGREEMENTS) == 1


def test_a_bad_connection_is_tried_again(host: Host, public: Public, tmp_path: Path) -> None:
    host.faults[AGREEMENTS] = ["cut short", 503]
    fetch(public, tmp_path / "data", server=host.url, pauses=NO_PAUSES)
    assert host.requests.count(AGREEMENTS) == 3


def test_a_connection_that_stays_bad_names_the_file(host: Host, public: Public, tmp_path: Path) -> None:
    host.faults[AGREEMENTS] = ["cut short"] * 3
    with pytest.raises(FetchFailed, match=f"{AGREEMENTS}: IncompleteRead"):
        fetch(public, tmp_path / "data", server=host.url, pauses=NO_PAUSES)
    assert not (tmp_path / "data" / "raw" / "dbpedia_entity_v2").exists()


def test_what_is_not_there_is_not_asked_for_again(host: Host, public: Public, tmp_path: Path) -> None:
    del host.files[AGREEMENTS]
    with pytest.raises(FetchFailed, match=f"{AGREEMENTS}: HTTP Error 404"):
        fetch(public, tmp_path / "data", server=host.url, pauses=NO_PAUSES)
    assert host.requests.count(AGREEMENTS) == 1


def test_a_damaged_file_is_replaced(host: Host, public: Public, tmp_path: Path) -> None:
    fetch(public, tmp_path / "data", server=host.url)
    (tmp_path / "data" / "raw" / "dbpedia_entity_v2" / "annotator_agreements.tsv").write_bytes(b"")
    graded = tmp_path / "data" / "graded.jsonl.gz"
    graded.write_bytes(graded.read_bytes()[:-20])
    host.requests.clear()

    fetch(public, tmp_path / "data", server=host.url)

    assert host.requests == [AGREEMENTS]
    assert read_judged(tmp_path / "data", range(10)) == read_judged(tmp_path / "expected", range(10))


def test_data_that_differs_from_the_shipped_models_is_reported(
    host: Host, public: Public, tmp_path: Path
) -> None:
    changed = public.model_copy(update={"prepared": {**public.prepared, "graded.jsonl.gz": "0" * 64}})
    with pytest.raises(FetchFailed, match=r"not what the shipped model was trained on: graded\.jsonl\.gz$"):
        fetch(changed, tmp_path / "data", server=host.url)


def test_the_committed_list_covers_every_file_the_pipeline_reads(tmp_path: Path) -> None:
    public = read_public()
    prepare(write_raw(tmp_path / "raw"), tmp_path / "data")
    written = {path.relative_to(tmp_path / "data").as_posix() for path in (tmp_path / "data").rglob("*.gz")}
    assert set(public.prepared) == written

    listed = {
        (repository.source, Path(file.path).name): file
        for repository in public.repositories
        for file in repository.files
    }
    assert len(listed) == sum(len(repository.files) for repository in public.repositories)
    read = {
        (path.parent.name, path.name)
        for path in (tmp_path / "raw").rglob("*.*")
        if path.is_file() and path.parent.name != "oewn_text"
    }
    assert read == {(source, name) for source, name in listed if source != "oewn_text"}


def test_a_file_of_the_right_size_but_other_content_differs() -> None:
    file = RawFile(path="a", size_bytes=3, sha256=hashlib.sha256(b"abc").hexdigest())
    assert difference(b"abc", file) is None
    assert difference(b"abd", file) is not None
