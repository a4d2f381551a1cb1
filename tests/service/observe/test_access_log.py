"""The access log of a replica in this process, read from the pipe that `headroom serve` would read."""

import hashlib
import json
import os
import re
import select
from collections.abc import Callable
from pathlib import Path

import pytest

from headroom.service.observe import access_log
from headroom.service.observe.access_log import AccessLog, Record, line
from tests.service.experimenting import config
from tests.service.in_process import QUERY, TITLES, serve

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HOSTILE = (
    "\n2026-01-01 200 GET /forged",
    "\r\x1b[2J\x1b]0;title\x07",
    "\u2028\u2029\x85\x9b31m",
    '" status=200 "',
    "\x00\x7f",
    "%0a\\n",
)


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A function that returns the lines that have been written to the pipe since its last call."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv(access_log.PIPE, str(tmp_path / "pipe"))
    reader = os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK)

    def written() -> list[str]:
        try:
            return os.read(reader, 1_000_000).decode("ascii").splitlines()
        except BlockingIOError:
            return []

    return written


async def test_a_line_says_who_asked_for_what_and_how_it_went(
    tiny_checkpoint: Path, lines: Callable[[], list[str]], database_url: str
) -> None:
    async with serve(tiny_checkpoint, config(), access_log="json", database_url=database_url) as running:
        headers = {"x-request-id": "mine-1", "traceparent": TRACEPARENT, "cookie": "secret"}
        body = {"query": QUERY, "titles": TITLES, "head_mask": "2.*"}
        answer = await running.http.post("/v1/score?key=secret", json=body, headers=headers)
        timing = answer.json()["timing_ms"]
        await running.refused("/v1/score", 422, query=QUERY, titles=["secret"], head_mask="secret")
        late = {"query": QUERY, "titles": [f"{TITLES[0]} {number}" for number in range(1000)]}
        await running.http.post("/v1/score", json=late | {"deadline_ms": 1})
        await running.post("/v1/compare", query=QUERY, titles=TITLES, masks=["none"], variants=["cut"])
        assigned = await running.post("/v1/score", query=QUERY, titles=TITLES, unit="user-1")
        await running.http.head("/v1/models")
        for probe in ("/health/live", "/health/ready", "/ping", "/v2/health/ready"):
            assert (await running.http.get(probe)).status_code == 200
    written = lines()
    first, refused, shed, compare, exposed, head = (json.loads(line) for line in written)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first.pop("duration_ms") >= first["queue_ms"] + first["inference_ms"]
    assert first == {
        "level": "INFO",
        "request_id": "mine-1",
        "trace_id": TRACEPARENT.split("-")[1],
        "key": None,
        "method": "POST",
        "path": "/v1/score",
        "status": 200,
        "pairs": len(TITLES),
        "variant": "full",
        "mask": answer.json()["head_mask"]["id"],
        "experiment": None,
        "arm": None,
        "config_version": answer.headers["x-config-version"],
        "queue_ms": pytest.approx(timing["queue"], abs=0.001),
        "inference_ms": pytest.approx(timing["inference"], abs=0.001),
        "shed": None,
    }
    assert (refused["status"], refused["variant"], refused["trace_id"]) == (422, None, None)
    # The queue may know at once that it cannot be done in time.
    assert (shed["status"], shed["shed"]) in ((504, "deadline"), (429, "queue_full"))
    assert shed["pairs"] == 1000
    assert (compare["variant"], compare["pairs"]) == ("full,cut", len(TITLES))
    assignment = assigned["assignment"]
    assert (exposed["experiment"], exposed["arm"]) == ("prune20", assignment["arm"])
    assert exposed["config_version"] == first["config_version"]
    assert (head["method"], head["path"], head["status"]) == ("HEAD", "/v1/models", 200)
    assert not any("secret" in line or QUERY in line or TITLES[0] in line for line in written)


async def test_lines_tell_callers_apart_by_a_name_of_their_key(
    tiny_checkpoint: Path, lines: Callable[[], list[str]]
) -> None:
    async with serve(tiny_checkpoint, access_log="json", api_keys="s3cr3t;rate=1,other") as running:
        for key in ("s3cr3t", "s3cr3t", "other", "wrong"):
            await running.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    name = hashlib.sha256(b"s3cr3t").hexdigest()[:8]
    mine, limited, other, wrong = written = [json.loads(line) for line in lines()]
    assert [line["status"] for line in written] == [200, 429, 200, 401]
    assert mine["key"] == limited["key"] == name, "who sends too much is in the line of the refusal, too"
    assert other["key"] not in (name, None)
    assert wrong["key"] is None
    assert "s3cr3t" not in json.dumps(written)


def test_no_request_can_forge_a_line_or_move_the_cursor() -> None:
    for text in HOSTILE:
        request = Record("id", "GET" + text, b"/" + text.encode() + b"\xff\xfe")
        request.set_columns([("full", "20e5ffaa4b14", "tiny")], 1)
        written = line(request)
        assert written.endswith("\n")
        assert re.fullmatch(r"[ -~]*", written[:-1]), text
        assert len(written) < select.PIPE_BUF
    long = Record("i" * 128, "M" * 10_000, b"/" + b"\n" * 1_000_000)
    long.set_columns([("v" * 64, "0" * 12, "m")] * 64, 1)
    long.set_arm("e" * 64, "a" * 64)
    assert len(line(long)) < select.PIPE_BUF


def test_lines_that_nobody_reads_are_counted_and_hold_up_nobody(lines: Callable[[], list[str]]) -> None:
    log, request = AccessLog("json"), Record("id", "GET", b"/x")
    for _ in range(10_000):
        log.finish(request, status=200, seconds=0.1)
    written = lines()
    log.finish(request, status=200, seconds=0.1)
    told, last = map(json.loads, lines())
    assert last["path"] == "/x"
    assert 0 < len(written) == 10_000 - told["lost_lines"]
