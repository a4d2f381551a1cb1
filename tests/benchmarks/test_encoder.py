"""The benchmark runs, counts what it says it counts, and reports a missed target. No thresholds on time."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import encoder
from benchmarks.__main__ import as_json, as_markdown, missed_targets
from benchmarks.measure import Ratio, alternate, ratio
from benchmarks.workload import SHAPES, Shape, query_title_lengths, useful_flops

TINY = Shape("tiny", hidden=24, inner=48, vocabulary=100, layers=2, heads=2)


def test_a_run_has_a_row_for_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)

    rows = encoder.measure("tiny", rounds=2)

    assert len({row.engine for row in rows}) == len(rows) == 7
    assert all(row.pairs_per_second > 0 and row.share_of_limit > 0 for row in rows)
    assert next(row for row in rows if row.engine == encoder.OURS).against_ours == Ratio(1, 1, 1)
    assert as_markdown(rows).count("\n| tiny |") == 7
    assert isinstance(as_json(rows)["encoder"], list)


def test_sides_take_turns_and_ratios_are_round_by_round() -> None:
    calls: list[str] = []
    alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert calls == ["a", "b"] * 4

    found = ratio({"a": [1.0, 2.0, 1.0], "b": [2.0, 2.0, 4.0]}, fast="a", slow="b")
    assert found == Ratio(2.0, 1.0, 4.0)


def test_useful_flops_are_those_of_the_definition() -> None:
    lengths = np.array([3, 5])
    expected = 0
    for n in lengths:
        projections = 4 * 2 * n * 24 * 24
        attention = 2 * (2 * n * n * 24)  # q·kᵀ and p·v over all heads
        expected += 2 * (projections + attention + 2 * 2 * n * 24 * 48)
    assert useful_flops(TINY, lengths) == expected


def test_lengths_are_those_of_product_search() -> None:
    lengths = query_title_lengths(20_000)
    assert abs(lengths.mean() - 25) < 0.5
    assert abs(np.quantile(lengths, 0.95) - 39) <= 2
    assert abs(np.quantile(lengths, 0.99) - 48) <= 2


def test_a_missed_target_is_said() -> None:
    def row(engine: str, share: float, speed: float, against: float) -> encoder.Row:
        ratios = (Ratio(speed, speed, speed), Ratio(against, against, against))
        return encoder.Row(SHAPES["base"].name, engine, 1.0, share, *ratios)

    assert missed_targets([row(encoder.OURS, 0.95, 1.5, 1.0), row(encoder.MASKED, 0.9, 1.4, 0.98)]) == []
    missed = missed_targets([row(encoder.OURS, 0.85, 0.9, 1.0), row(encoder.MASKED, 0.8, 0.8, 0.9)])
    assert len(missed) == 3
