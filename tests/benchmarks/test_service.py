"""The service benchmark: that it runs, counts what it says, and says which target is missed."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import request_path, service
from benchmarks.crowd import Requests
from benchmarks.load_runs import LoadRuns
from benchmarks.service_runs import LONG_WORDS, MANY_TITLES, Lengths, Start
from loadtest.plan import Plan
from tests.loadtest.servers import reference

FINE: dict[str, Any] = {
    "machine": "a machine",
    "rounds": 1,
    "start_s": 12.0,
    "saturated": {
        "requests_per_second": 40.0,
        "model": 850.0,
        "http": 800.0,
        "client": 0.01,
        "raw_share": 0.94,
        "share": 0.95,
        "range": [0.93, 0.96],
        "turns": [],
    },
    "idle": {"model_ms": 4.0, "http_ms": 6.0, "overhead_ms": 2.0, "range": [1.9, 2.2]},
    "overload": {
        "rate": 80.0,
        "goodput": 0.97,
        "ok": 800,
        "ok_p50_ms": 900.0,
        "ok_p99_ms": 1200.0,
        "errors": {"http_429": 800},
        "refused_p50_ms": 4.0,
        "refused_p99_ms": 30.0,
        "memory_growth": 1.001,
        "client": 0.02,
    },
    "crowd": {
        "without_p50_ms": 6.0,
        "without_p99_ms": 15.0,
        "with_p50_ms": 25.0,
        "with_p99_ms": 44.0,
        "factor": 2.9,
        "turns": 2,
        "requests": 120,
        "failed": 0,
        "long_requests": 9,
        "long_failed": 0,
    },
    "long_crowd": {
        "without_p50_ms": 6.0,
        "without_p99_ms": 15.0,
        "with_p50_ms": 25.0,
        "with_p99_ms": 44.0,
        "factor": 2.9,
        "turns": 2,
        "requests": 120,
        "failed": 0,
        "long_requests": 2,
        "long_failed": 0,
    },
    "memory": {"bytes": 600 * 2**20, "factor": 1.002},
    "base": {
        "requests_per_second": 18.0,
        "model": 400.0,
        "http": 380.0,
        "client": 0.004,
        "raw_share": 0.95,
        "share": 0.955,
        "range": [0.95, 0.96],
        "turns": [],
    },
    "path": {"titles": 20, "ms": {"parse JSON": 0.01, "forward": 24.0}, "forward": {"linear": 1.0}},
}


@pytest.mark.slow
def test_a_short_run_has_every_row(
    start: Start, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of all measurements is the same one here; `start` tests that it is stopped."""
    monkeypatch.setattr(request_path, "TIMES", 2)
    lengths = Lengths(fill=0.5, saturate=1.0, idle=0.5, overload=2.0, crowd=1.0, memory=1.0, max_lag=math.inf)
    result = service.measure(1, lengths, model=small_checkpoint, base=small_checkpoint, start=start)

    assert result.keys() == FINE.keys()
    assert result["overload"]["ok"] > 0
    for crowd in (result["crowd"], result["long_crowd"]):
        assert crowd["failed"] == crowd["long_failed"] == 0
    assert result["memory"]["bytes"] > 2**20
    not_finite = {
        name
        for part in result.values()
        if isinstance(part, dict)
        for name, value in part.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    refused = "http_429" in result["overload"]["errors"]  # two seconds may be too short to fill the queue
    assert not_finite == (set() if refused else {"refused_p50_ms", "refused_p99_ms"})
    assert service.as_markdown(result).count("\n|") == 2 + 10 + 2 + 7
    assert isinstance(service.missed(result), list)


def test_the_table_says_on_what_the_crowds_p99_rests_and_which_run_was_invalid() -> None:
    table = service.as_markdown(FINE)
    assert "× 2.9 (median of 2 turns, of 120 requests each); 0 failed" in table
    assert "of the long requests, 0 failed, 9 answered" in table
    assert "Invalid run" not in table
    late = copy.deepcopy(FINE)
    late["idle"]["invalid"] = ["turn 1: the client sent late"]
    assert "\nInvalid run: idle, turn 1: the client sent late.\n" in service.as_markdown(late)


def test_a_run_that_the_client_spoiled_is_kept_by_name() -> None:
    with reference("0") as server:
        plan = Plan(url=server.url, rate=20.0, duration=0.5, warmup=0.0, max_lag=1e-6)
        runs = LoadRuns()
        runs.run(plan, "the first")
        runs.run(plan.changed(max_lag=60.0), "the second")
    (line,) = runs.invalid
    assert line.startswith("the first: the client sent late")


def test_the_parts_of_a_request_add_up(monkeypatch: pytest.MonkeyPatch, small_checkpoint: Path) -> None:
    monkeypatch.setattr(request_path, "TIMES", 2)
    path = request_path.measure(3, small_checkpoint)
    assert all(part > 0 for part in path["ms"].values())
    assert sum(path["forward"].values()) == pytest.approx(1)
    assert path["forward"]["linear"] > 0


def test_requests_are_as_long_as_asked_and_differ() -> None:
    requests = Requests(3)
    assert all(len(titles) == 3 for _, titles in requests.texts)
    assert len({requests.body() for _ in range(50)}) == 50
    assert all(len(title.split()) == 650 for _, titles in Requests(3, 650).texts for title in titles)
    assert len(Requests(MANY_TITLES, LONG_WORDS).body()) < 4_000_000


def test_a_run_that_reaches_every_target_misses_none() -> None:
    assert service.missed(FINE) == []


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("saturated", "share", 0.85),
        ("base", "share", 0.85),
        ("idle", "overhead_ms", 3.5),
        ("overload", "goodput", 0.85),
        ("overload", "refused_p99_ms", 60.0),
        ("overload", "errors", {"http_429": 700, "http_504": 100}),
        ("overload", "memory_growth", 1.1),
        ("crowd", "factor", 3.4),
        ("crowd", "with_p99_ms", 170.0),
        ("crowd", "failed", 1),
        ("long_crowd", "factor", 3.4),
        ("long_crowd", "failed", 1),
        ("crowd", "long_requests", 0),
        ("crowd", "long_failed", 3),
        ("long_crowd", "long_requests", 0),
        ("crowd", "invalid", ["turn 1, alone: the client sent late"]),
        ("memory", "factor", 1.05),
    ],
)
def test_a_missed_target_is_said(part: str, field: str, value: object) -> None:
    result = copy.deepcopy(FINE)
    result[part][field] = value
    (line,) = service.missed(result)
    assert line.startswith("service: ")
