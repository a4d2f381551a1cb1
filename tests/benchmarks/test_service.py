"""The service benchmark: that it runs, and counts what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import load, service
from benchmarks.load import LoadRuns
from benchmarks.serving import Start
from loadtest.plan import Plan
from tests.loadtest.servers import reference


@pytest.mark.slow
def test_a_short_run_has_every_row(
    start: Start, small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of all measurements is the same one here; `start` tests that it is stopped."""
    short = {"saturate": 1.0, "idle": 0.5, "overload": 2.0, "crowd": 1.0, "memory": 1.0}
    monkeypatch.setattr(service, "SECONDS", short)
    monkeypatch.setattr(service, "FILL_S", 0.5)
    monkeypatch.setattr(load, "MAX_LAG_S", 1e9)
    report = service.measure(1, small_checkpoint, small_checkpoint, start)

    rows = {row.name: row for row in report.rows}
    rows.pop("overload: p99 of a refusal", None)  # two seconds may be too short to fill the queue
    assert [*rows] == [
        "HTTP against the model alone, saturated",
        "one pair, idle: p50 beyond the model's",
        "overload: goodput",
        "overload: lost (neither answered nor 429)",
        "overload: memory after / before",
        "single titles beside 1,000 in a loop",
        "memory with a second mask variant",
        "ready after",
        "HTTP against the model alone, saturated, BERT-base's shape",
    ]
    assert not any("nan" in row.value for row in rows.values())
    crowd = rows["single titles beside 1,000 in a loop"].value
    assert "; 0 of either failed, " in crowd
    assert ", 0 long requests" not in crowd


def test_a_run_that_the_client_spoiled_is_kept_by_name() -> None:
    with reference("0") as server:
        plan = Plan(url=server.url, rate=20.0, duration=0.5, warmup=0.0, max_lag=1e-6)
        runs = LoadRuns()
        runs.run(plan, "the first")
        runs.run(plan.changed(max_lag=60.0), "the second")
    (line,) = runs.invalid
    assert line.startswith("the first: the client sent late")
