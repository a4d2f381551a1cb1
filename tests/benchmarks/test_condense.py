"""The condense section counts passes, and says when a method takes too many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import condense


@pytest.mark.usefixtures("one_thread")
def test_every_method_is_measured_in_passes(tiny_checkpoint: Path) -> None:
    result = condense.measure(rounds=1, model=tiny_checkpoint, candidates=3)

    assert (result["words"], result["candidates"]) == (15, 3)
    assert set(result["passes"]) == {"greedy", "leave_one_out", "attention", "idf"}
    assert all(passes["median"] > 0 for passes in result["passes"].values())
    table = condense.as_markdown(result)
    assert "15 words with 3 candidates" in table
    assert "\n| greedy | " in table


def test_a_missed_target_is_said() -> None:
    def took(greedy: float, leave_one_out: float) -> dict[str, Any]:
        return {"passes": {"greedy": {"median": greedy}, "leave_one_out": {"median": leave_one_out}}}

    assert condense.missed(took(75.0, 15.5)) == []
    assert len(condense.missed(took(91.0, 16.5))) == 2
