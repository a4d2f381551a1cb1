"""The studies section compares both ways on the same masks."""

from __future__ import annotations

from pathlib import Path

from benchmarks import studies


def test_both_ways_give_the_same_logits(tiny_checkpoint: Path) -> None:
    report = studies.measure(rounds=2, model=tiny_checkpoint, pairs=12)

    rows = {row.name: row for row in report.rows}
    assert float(rows["largest difference of a logit"].value) < 0.1
    assert rows["one pass, share of the time"].target == "≤ 60%"
    assert "12 pairs under " in report.as_markdown()
