"""`make audit`: it asks about every package, and says so if it could ask about none."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import pytest

from deploy import audit
from headroom.loadtest.server import free_port

pytestmark = pytest.mark.more

FLAW = {"id": "TEST-1", "affected": []}


@contextmanager
def osv(flawed: set[str]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A stand-in for OSV's service, and the packages that it was asked about."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["content-length"])))
            name = question["package"]["name"]
            asked.append((name, question["version"]))
            body = json.dumps({"vulns": [FLAW]} if name in flawed else {}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def run(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.audit", "--vulnerability-service", "osv", "--osv-url", url]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_installed_package_is_asked_about_and_a_flaw_is_a_failure() -> None:
    with osv({"urllib3", "torch"}) as (url, asked):
        done = run(url)
    assert done.returncode == 1
    assert "TEST-1" in done.stdout
    assert len(asked) == len(audit.installed()) + 1, (
        "one is asked first, to see whether the service knows anything"
    )
    assert ("torch", version("torch").partition("+")[0]) in asked, "the service knows no local versions"


def test_a_service_that_cannot_be_asked_or_knows_nothing_is_a_failure() -> None:
    with osv(set()) as (url, asked):
        mute = run(url)
    away = run(f"http://127.0.0.1:{free_port()}")
    assert asked == [("urllib3", "1.24.1")]
    for done in (mute, away):
        assert done.returncode == 1
        assert done.stderr.startswith("nothing was audited: ")
