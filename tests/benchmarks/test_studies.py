"""The studies section compares both ways on the same masks, and says when one pass does not pay."""

from __future__ import annotations

from pathlib import Path

from benchmarks import studies


def test_both_ways_give_the_same_logits(tiny_checkpoint: Path) -> None:
    result = studies.measure(rounds=2, model=tiny_checkpoint, pairs=12)

    assert result["pairs"] == 12
    assert result["logits_apart"] < 0.1
    assert all(seconds > 0 for seconds in result["seconds"].values())
    table = studies.as_markdown(result)
    assert f"12 pairs under {result['masks']} masks" in table
    assert "\n| one pass | " in table


def test_a_missed_target_is_said() -> None:
    def share(median: float) -> dict[str, dict[str, float]]:
        return {"share": {"median": median, "low": median, "high": median}}

    assert studies.missed(share(0.5)) == []
    assert len(studies.missed(share(0.7))) == 1
