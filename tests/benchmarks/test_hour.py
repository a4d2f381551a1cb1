"""The hour of load: that it runs, reads the memory it says, and says which target is missed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks import hour
from benchmarks.service_runs import Start


def period(mebibytes: int, **errors: int) -> dict[str, Any]:
    return {"bytes": mebibytes * 2**20, "ok": 6000, "errors": errors, "p50_ms": 20.0, "p99_ms": 80.0}


FLAT: dict[str, Any] = {
    "machine": "a machine",
    "period_s": 300.0,
    "periods": [period(1000), period(1010)],
    "p99_ms": 90.0,
    "growth": 1.01,
}


@pytest.mark.slow
def test_a_short_run_has_a_line_for_each_period(start: Start) -> None:
    result = hour.measure(2, period_s=2.0, start=start)

    assert all(measured["bytes"] > 2**20 and measured["ok"] > 0 for measured in result["periods"])
    first, last = (measured["bytes"] for measured in result["periods"])
    assert result["growth"] == last / first
    assert hour.as_markdown(result).count("\n|") == 2 + 2
    each = [measured["p99_ms"] for measured in result["periods"]]
    assert min(each) <= result["p99_ms"] <= max(each)


def test_the_table_counts_what_was_not_answered() -> None:
    result = FLAT | {"periods": [period(1000), period(1010, http_503=3, timeout=1)]}
    table = hour.as_markdown(result)
    assert "12000 answered, 4 not" in table
    assert "p99 90 ms of all requests." in table
    assert "× 1.010 from 5 minutes to the end" in table
    assert "| 10 min | 1010 MiB | 20 ms | 80 ms | 4 |" in table


def test_growth_counts_from_half_time_on() -> None:
    periods = [period(mebibytes) for mebibytes in (1000, 1100, 1200, 1206)]
    table = hour.as_markdown(FLAT | {"periods": periods, "growth": 1206 / 1100})
    assert "× 1.096 from 10 minutes to the end, × 1.206 from the first line" in table


def test_a_missed_target_is_said() -> None:
    assert hour.missed(FLAT) == []
    assert hour.missed(FLAT | {"growth": 1.03}) == ["hour: memory grew × 1.030"]
    lost = copy.deepcopy(FLAT)
    lost["periods"][0] = period(1000, http_429=2)
    assert hour.missed(lost) == ["hour: 2 requests were not answered"]
