"""The bulk section measures the same pairs both ways, and says when the job is too slow."""

from __future__ import annotations

from pathlib import Path

from benchmarks import bulk


def test_both_ways_take_the_same_pairs(tiny_checkpoint: Path) -> None:
    result = bulk.measure(rounds=1, model=str(tiny_checkpoint), pairs=300)
    assert all(rate > 0 for rate in result["pairs_per_second"].values())
    assert "a csv file of 300 different" in bulk.as_markdown(result)


def test_a_missed_target_is_said() -> None:
    assert bulk.missed({"share": {"median": 0.96, "low": 0.9, "high": 1.0}}) == []
    assert len(bulk.missed({"share": {"median": 0.9, "low": 0.9, "high": 0.9}})) == 1
