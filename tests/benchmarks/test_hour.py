"""The hour of load: that it runs, and reads the memory it says."""

from __future__ import annotations

import pytest

from benchmarks import hour
from benchmarks.serving import Start


@pytest.mark.slow
def test_a_short_run_has_a_line_for_each_period(start: Start) -> None:
    report = hour.measure(2, period_s=2.0, start=start)

    assert [line["after"] for line in report.tables["Periods"]] == ["0.0333333 min", "0.0666667 min"]
    assert all(int(line["memory"].split()[0]) > 1 for line in report.tables["Periods"])
    assert [row.name for row in report.rows[:2]] == ["memory's growth in the second half", "not answered"]


def test_growth_counts_from_half_time_on() -> None:
    row = hour.growth([1000, 1100, 1200, 1206])
    assert row.value == "1.096 (× 1.206 since the first period)"
    assert not row.ok
    assert hour.growth([1000, 1010]).ok
