"""The condense section counts passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import condense


@pytest.mark.usefixtures("one_thread")
def test_every_method_is_measured_in_passes(tiny_checkpoint: Path) -> None:
    report = condense.measure(rounds=1, model=tiny_checkpoint, candidates=3)

    rows = {row.name: row for row in report.rows}
    assert {f"{method}: passes" for method in condense.METHODS} == rows.keys()
    assert rows["greedy: passes"].target == "≤ 90"
    assert "15 words with 3 candidates" in report.as_markdown()
