"""The bulk section measures the same pairs both ways."""

from __future__ import annotations

from pathlib import Path

from benchmarks import bulk


def test_both_ways_take_the_same_pairs(tiny_checkpoint: Path) -> None:
    report = bulk.measure(rounds=1, model=str(tiny_checkpoint), pairs=300, seconds=0.1)
    assert [row.name for row in report.rows] == [bulk.ALONE, bulk.JOB, "share of the network's rate"]
    assert "a csv file of 300 different" in report.as_markdown()
