"""`headroom experiment`, as typed at a prompt."""

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.events import Exposure, Outcome
from headroom.service.experiments.store import Store
from tests.prompt import Run
from tests.service.experiments.making import act, experiment, logged, send


class Service(BaseHTTPRequestHandler):
    """Answers as the service does, and keeps what it was asked."""

    asked: list[tuple[str, str, dict[str, str], Any]]
    detail: dict[str, Any]

    def _answer(self, body: Any) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.asked.append((self.command, self.path, headers, body))
        status, answer = 200, self.detail
        for name, refusal in {"unknown": 404, "locked": 401}.items():
            if name in self.path:
                status, answer = refusal, {"error": {"message": "no such experiment", "param": None}}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def log_message(self, *_: Any) -> None:
        pass


CONFIG = experiment(metrics=[{"name": "clicked", "kind": "proportion", "margin": 0.5}], planned_units=100)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, type[Service]]]:
    """A service whose database has 40 units of each of two arms, with clicks, and a log."""
    store, arms = Store(f"sqlite:///{tmp_path / 'x.db'}"), ["control", "pruned"]
    store.add([Exposure("prune20", f"u{i}", arms[i % 2], 1, 100.0, "v") for i in range(80)])
    send(
        store,
        [Outcome("prune20", f"o{i}", f"u{i}", "clicked", 1.0, 120.0) for i in range(80) if i % 3],
        [CONFIG],
    )
    found = logged(CONFIG, act("rollback", 300.0, arm="pruned", reason="p99"), time=90.0)
    report = analyse(store, found, 1000.0, {})
    handler = type("Handler", (Service,), {"asked": []})
    handler.detail = {
        "name": "prune20",
        "kind": "ab",
        "arms": [
            {"name": arm, "variant": arm, "weight": 1, "control": arm == "control", "exposures": 40}
            for arm in arms
        ],
        "status": "running",
        "traffic": 0.2,
        "rolled_back": ["pruned"],
        "shipped": None,
        "kept_days": 30.0,
        "history": [asdict(action) for action in found.history],
        "report": asdict(report),
    }
    store.close()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_report_for_people_and_for_programs(
    run: Run, service: tuple[str, type[Service]], tmp_path: Path
) -> None:
    url, handler = service
    shared = tmp_path / "shared.html"
    shown = run("experiment", "report", "prune20", "--url", url, "--out", str(shared))
    assert "Stop: Every arm was rolled back to control." in shared.read_text(encoding="utf-8")
    assert "STOP: Every arm was rolled back to control." in shown.out
    assert shown.out.endswith(f"\n{shared}\n")
    missing = {"retention": "Outcomes from before 2026-11-01 00:00 UTC are deleted."}
    handler.detail["report"] |= missing
    retained = run("experiment", "report", "prune20", "--url", url, "--out", str(shared)).out
    for text in (retained, shared.read_text(encoding="utf-8")):
        assert missing["retention"] in text
    running, handler.detail = handler.detail, handler.detail | {"status": "shipped", "shipped": "pruned"}
    over = run("experiment", "report", "prune20", "--url", url).out
    assert "shipped, traffic 0.2, rolled back: pruned, everybody gets pruned" in over
    assert "AT THE END: Every arm was rolled back to control." in over
    handler.detail = running
    for part in (
        "prune20: running, traffic 0.2, rolled back: pruned",
        "80 of 100 planned units",
        "clicked",
        "p99",
    ):
        assert part in shown.out
    assert handler.asked[0][:2] == ("GET", "/v1/experiments/prune20")
    assert json.loads(run("experiment", "report", "prune20", "--url", url, "--json").out) == handler.detail


def test_changes_carry_their_reason_and_the_key(
    run: Run, service: tuple[str, type[Service]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = service
    monkeypatch.setenv("HEADROOM_API_KEY", "secret\n")  # as in a Secret that `echo` made
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    why = ["--url", url, "--reason", "looks fine"]
    run("experiment", "ramp", "prune20", "--traffic", "0.25", *why)
    run("experiment", "ramp", "prune20", *why, status=2)
    handler.detail["report"] = None  # as the service answers to a change
    assert "No analysis" not in run("experiment", "stop", "prune20", *why).out
    assert "No analysis at present" in run("experiment", "report", "prune20", "--url", url).out
    run("experiment", "ship", "prune20", "pruned", "--url", url, "--reason", "looks fine")
    bodies = [
        (path.removeprefix("/v1/experiments/prune20"), body)
        for method, path, _, body in handler.asked
        if method == "POST"
    ]
    assert bodies == [
        ("/ramp", {"traffic": 0.25, "reason": "looks fine"}),
        ("/stop", {"reason": "looks fine"}),
        ("/ship", {"arm": "pruned", "reason": "looks fine"}),
    ]
    assert {headers["authorization"] for _, _, headers, _ in handler.asked} == {"Bearer secret"}


ENTRY = """\
name: prune20
salt: "2026-12"
arms: [{name: control, variant: full}, {name: pruned, variant: pruned20}]
metrics: [{name: click, margin: 0.02}]
"""


def test_an_experiment_is_started_from_a_file_and_a_ship_rolled_back(
    run: Run, service: tuple[str, type[Service]], tmp_path: Path
) -> None:
    url, handler = service
    handler.detail["report"] = None
    file = tmp_path / "prune20.yaml"
    file.write_text(ENTRY)
    entry = yaml.safe_load(ENTRY)
    assert "prune20: running" in run("experiment", "start", str(file), "--url", url, "--key", "secret").out
    file.write_text("experiments:\n  - " + ENTRY.replace("\n", "\n    ").rstrip())  # as in serve.yaml
    assert json.loads(run("experiment", "start", str(file), "--url", url, "--json").out) == handler.detail
    assert (
        "prune20: running" in run("experiment", "rollback", "prune20", "--url", url, "--reason", "slow").out
    )
    assert [(path, body) for _, path, _, body in handler.asked] == [
        ("/v1/experiments", entry),
        ("/v1/experiments", entry),
        ("/v1/experiments/prune20/rollback", {"reason": "slow"}),
    ]
    assert handler.asked[0][2]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not an experiment (a mapping with `name`, `salt` and `arms`)"),
        (f"experiments: [{{{'a: 1'}}}, {{{'a: 1'}}}]", "experiments must hold exactly one experiment"),
        (ENTRY.replace("0.02", "2"), "metrics[0].margin: a relative margin is a share of control's value"),
        (ENTRY + "salt: again\n", "line 5: the key 'salt' stands twice"),
        (ENTRY.replace('"2026-12"', "2026"), "salt: Input should be a valid string; put it in quotes"),
    ],
)
def test_a_file_that_is_no_experiment_is_refused_before_the_service_is_asked(
    run: Run, tmp_path: Path, content: str, reason: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(content)
    error = run("experiment", "start", str(file), "--url", "http://127.0.0.1:1", status=1).err
    assert error.startswith(f"headroom: {file}")
    assert reason in error
    assert error.count("\n") == 1
    missing = run("experiment", "start", str(tmp_path / "none.yaml"), status=1).err
    assert missing == f"headroom: {tmp_path / 'none.yaml'}: No such file or directory\n"


def test_what_the_service_refuses_is_one_line(run: Run, service: tuple[str, type[Service]]) -> None:
    url, _ = service
    unknown = run("experiment", "report", "unknown", "--url", url, status=1)
    assert unknown.err == "headroom: no such experiment\n"
    locked = run("experiment", "stop", "locked", "--url", url, status=1)
    assert "give it by --key, or in HEADROOM_API_KEY" in locked.err
    wrong = run("experiment", "stop", "locked", "--url", url, "--key", "another", status=1)
    assert wrong.err == "headroom: the service does not know this API key (--key, or HEADROOM_API_KEY)\n"
    nobody = run("experiment", "stop", "prune20", "--url", "http://127.0.0.1:1", status=1)
    refused = "no answer from http://127.0.0.1:1: Connection refused; does it run there? --url names another"
    assert nobody.err == f"headroom: {refused}\n"
    hidden = run("experiment", "report", "prune20", "--url", "http://me:s3cret@127.0.0.1:1", status=1)
    assert hidden.err == f"headroom: {refused}\n"
    run("experiment", "stop", "prune20", "--url", "localhost:8000", status=2)
    run("experiment", "ramp", "prune20", "--traffic", "1.5", status=2)
