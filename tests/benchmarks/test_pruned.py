"""The benchmark of the shipped masks, on few pairs."""

from __future__ import annotations

import pytest

from benchmarks import pruned


@pytest.fixture(scope="module")
def result() -> dict[str, object]:
    return pruned.measure(rounds=1, limit=48)


def test_every_stored_mask_is_measured_in_every_format(result: dict[str, object]) -> None:
    rows = {(row["mask"], row["format"]): row for row in result["rows"]}  # type: ignore[attr-defined]
    formats = {name for _, name in rows}
    assert {"fp32", "int8"} <= formats
    for mask in ("intact", "pruned20", "pruned60", "fast", "rough"):
        for name in formats:
            assert rows[mask, name]["pairs_per_second"] > 0
    assert rows["fast", "fp32"]["loss"]["qwk"]["bound"] <= rows["fast", "fp32"]["loss"]["qwk"]["delta"]


def test_the_table_has_a_line_for_each(result: dict[str, object]) -> None:
    table = pruned.as_markdown(result)
    assert table.count("| fast |") == len({row["format"] for row in result["rows"]})  # type: ignore[attr-defined]


def test_a_slow_mask_or_one_that_may_lose_more_than_the_margin_is_named() -> None:
    speed = {"median": 2.1, "low": 2.0, "high": 2.2}
    loss = {"qwk": {"delta": -0.01, "bound": -0.02}, "ndcg10": {"delta": 0.0, "bound": -0.019}}
    row = {"mask": "fast", "format": "bf16", "over_intact": speed, "loss": loss}
    assert pruned.missed({"rows": [row]}) == [
        "`fast` in bf16 is 2.10 × the intact model, target 2.2 ×",
        "`fast` in bf16: qwk may fall by 0.020, margin 0.02",
    ]
    assert not pruned.missed({"rows": [row | {"over_intact": speed | {"median": 2.2}, "loss": {}}]})
