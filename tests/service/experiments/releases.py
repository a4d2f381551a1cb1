"""Releases of headroom from git's history, which serve in processes of their own beside this one."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.experimenting import BOSS, USER, config
from tests.service.in_process import QUERY, TITLES

ROOT = Path(__file__).parents[3]
COMMITS = {"0.2.0": "51780182"}
"""The commits of releases without a tag."""

LAST = "0.2.0"
"""The last release whose tables differ from those of this tree."""

LIVE = config(shadow=1.0)
PARTS = ("src", "service", "loadtest", "models", ":(exclude)models/default")


def extract(release: str, directory: Path) -> Path:
    """Write a release's code into a directory and return what goes on its path.

    Skips the running test if the clone has no such commit (`git clone --depth 1`).
    """
    for revision in (f"v{release}", COMMITS.get(release, "")):
        archive = subprocess.run(
            ["git", "archive", revision, *PARTS], cwd=ROOT, capture_output=True, check=False
        )
        if archive.returncode == 0:
            subprocess.run(["tar", "--extract", "--directory", directory], input=archive.stdout, check=True)
            return directory / "src"
    pytest.skip(f"this clone's history lacks headroom {release}; git fetch --unshallow --tags")


class Running:
    """A release that serves. arms: those that `score` has got, by unit."""

    def __init__(self, port: int) -> None:
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=USER, timeout=60)

    def arms(self, units: range) -> dict[str, str | None]:
        """Score one request for each unit, and return the arms."""
        found = {}
        for unit in map(str, units):
            answer = self.http.post("/v1/score", json={"query": QUERY, "titles": TITLES[:2], "unit": unit})
            assert answer.status_code == 200, answer.text
            assignment = answer.json()["assignment"]
            found[unit] = assignment and assignment["arm"]
        return found

    def send_outcomes(self, units: range) -> tuple[int, int]:
        """Send an outcome of each unit, and return how many were accepted, and how many duplicates."""
        rows = [
            {"experiment": "prune20", "unit": str(unit), "metric": "clicks", "id": f"o{unit}"}
            | {"value": 1, "time": time.time()}
            for unit in units
        ]
        answer = self.http.post("/v1/outcomes", json={"outcomes": rows})
        assert answer.status_code == 200, answer.text
        receipt = answer.json()
        return receipt["accepted"], receipt["duplicates"]

    def default_variant(self) -> str:
        """Return the variant that a request without a unit gets."""
        answer = self.http.post("/v1/score", json={"query": QUERY, "titles": TITLES[:2]})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["variant"])

    def act(self, name: str, **fields: Any) -> dict[str, Any]:
        """Ask for an action on the experiment, and return its state."""
        answer = self.http.post(f"/v1/experiments/prune20/{name}", json=fields, headers=BOSS)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def ready(self) -> tuple[int, str]:
        """Return the status of /health/ready, and the reason if it is not ready, or else a problem."""
        answer = self.http.get("/health/ready")
        body = answer.json()
        return answer.status_code, body.get("error", {}).get("message") or body.get("problem") or ""


@contextmanager
def serving(path: Path, model: Path, database_url: str, live: Mapping[str, Any] = LIVE) -> Iterator[Running]:
    """Serve with the code below `path` until the block ends, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("release_server.py"))]
    process = subprocess.Popen(
        [*command, str(model), database_url, json.dumps(live)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline()
        assert port, "it did not start; see above"
        running = Running(int(port))
        try:
            yield running
        finally:
            running.http.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
