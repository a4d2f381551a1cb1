"""The benchmark of a cascade measures the variants of deploy/serve.yaml."""

from __future__ import annotations

import pytest

from benchmarks import cascade
from benchmarks.load import LoadRuns, plan_for
from benchmarks.report import Report
from benchmarks.serving import Start


def test_the_cascade_is_that_of_the_config_file() -> None:
    assert cascade.stage_of() == ("rough", "10")


@pytest.mark.slow
def test_latency_compares_the_cascade_with_the_full_model(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "CASCADE", "pruned20")  # the shared server's variants
    monkeypatch.setattr(cascade, "TITLES", 5)
    monkeypatch.setattr(cascade, "LATENCY_S", 1.0)
    report, runs = Report(""), LoadRuns()
    with start() as server:
        cascade.latency(report, runs, plan_for(server.url).changed(rate=5.0), rounds=1)
    p99, failed = report.rows
    assert float(p99.value.split()[0]) > 0
    assert p99.target.endswith(" ms")
    assert failed.value == "0"
