"""Fetching the training data: cut-off runs go on, and nothing wrong is ever trained on."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from models.errors import ModelError
from models.training.shipped.fetch import fetch, read_public
from models.training.shipped.judged import read_judged
from models.training.shipped.sources import prepare
from tests.models.training.shipped.test_sources import write_raw

COMMIT = "0123456789" * 4


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
def public(host: Host, tmp_path: Path) -> dict[str, Any]:
    """A few rows of every source, on the host and listed as public.yaml does."""
    raw, prepared = write_raw(tmp_path / "origin"), tmp_path / "expected"
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
    prepare(raw, prepared)
    hashes = {
        path.relative_to(prepared).as_posix(): hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
        for path in prepared.rglob("*.gz")
    }
    return {"repositories": repositories, "prepared": hashes}


AGREEMENTS = f"/someone/dbpedia_entity_v2/{COMMIT}/data/annotator_agreements.tsv"


def test_a_first_run_gets_the_data_and_a_later_one_only_what_is_damaged(
    host: Host, public: dict[str, Any], tmp_path: Path
) -> None:
    fetch(public, tmp_path / "data", server=host.url)
    assert sorted(host.requests) == sorted(host.files)
    assert read_judged(tmp_path / "data", range(10)) == read_judged(tmp_path / "expected", range(10))

    host.requests.clear()
    fetch(public, tmp_path / "data", server=host.url)
    assert host.requests == []

    (tmp_path / "data" / "raw" / "dbpedia_entity_v2" / "annotator_agreements.tsv").write_bytes(b"")
    graded = tmp_path / "data" / "graded.jsonl.gz"
    graded.write_bytes(graded.read_bytes()[:-20])
    fetch(public, tmp_path / "data", server=host.url)
    assert host.requests == [AGREEMENTS]
    assert read_judged(tmp_path / "data", range(10)) == read_judged(tmp_path / "expected", range(10))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("missing", "HTTP Error 404"), ("cut short", "IncompleteRead"), ("changed", "expected SHA")],
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
    assert not (tmp_path / "data" / "raw" / "dbpedia_entity_v2").exists()

    before = set(host.requests)
    host.files[AGREEMENTS], host.cut_short = content, set()
    host.requests.clear()
    fetch(public, tmp_path / "data", server=host.url)
    assert set(host.requests) == {*host.files} - before | {AGREEMENTS}


def test_data_that_differs_from_the_shipped_models_is_reported(
    host: Host, public: dict[str, Any], tmp_path: Path
) -> None:
    public["prepared"]["graded.jsonl.gz"] = "0" * 64
    with pytest.raises(ModelError, match=r"not what the shipped model was trained on: graded\.jsonl\.gz$"):
        fetch(public, tmp_path / "data", server=host.url)


def test_the_committed_list_covers_every_file_the_pipeline_reads(tmp_path: Path) -> None:
    public = read_public()
    prepare(write_raw(tmp_path / "raw"), tmp_path / "data")
    written = {path.relative_to(tmp_path / "data").as_posix() for path in (tmp_path / "data").rglob("*.gz")}
    assert set(public["prepared"]) == written
    listed = [
        (repository["source"], Path(file["path"]).name)
        for repository in public["repositories"]
        for file in repository["files"]
    ]
    read = [(path.parent.name, path.name) for path in (tmp_path / "raw").rglob("*.*") if path.is_file()]
    assert sorted(listed) == sorted(read)
