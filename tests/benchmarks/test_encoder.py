"""The benchmark runs, counts what it says it counts, and reports a missed target. No thresholds on time."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import agreement, cores, encoder, parts
from benchmarks.measure import Ratio, alternate, ratio
from benchmarks.workload import SHAPES, Shape, document_lengths, query_title_lengths, useful_flops

TINY = Shape("tiny", hidden=24, inner=48, vocabulary=100, layers=2, heads=2)
AGREEMENT = {
    "pairs": 12.0,
    "max_probability_difference": 0.01,
    "grades_changed": 0.0,
    "qwk_float32": 0.5,
    "ndcg10_float32": 0.8,
    "qwk_bfloat16": 0.5,
    "ndcg10_bfloat16": 0.8,
}


@pytest.mark.usefixtures("one_thread")
def test_a_run_has_a_row_for_every_engine_and_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "SHAPES", {"tiny": TINY, "base": TINY})
    monkeypatch.setattr(encoder.agreement, "measure", lambda: AGREEMENT)
    monkeypatch.setattr(cores, "SCORES", 64**2)

    result = encoder.measure(rounds=2)

    rows = [row for row in result["rows"] if row["workload"] == "titles"]
    assert len({row["engine"] for row in rows}) == 11
    assert all(row["pairs_per_second"] > 0 and row["share_of_limit"] > 0 for row in result["rows"])
    ours = next(row for row in rows if row["engine"] == encoder.OURS)
    assert ours["against_ours"] == {"median": 1, "low": 1, "high": 1}
    assert sum(row["saved"] is not None for row in rows) == 6 * 2
    assert encoder.as_markdown(result).count("\n| tiny |") == 2 * 2 * 11 + 1
    assert encoder.as_markdown(result).count(", heads of ") == len(result["cores"]) / len(cores.KEYS) == 4
    json.dumps(result)


def test_bfloat16_is_compared_with_float32_on_labelled_pairs() -> None:
    found = agreement.measure(limit=12)

    assert found["pairs"] == 12
    assert 0 < found["max_probability_difference"] < 0.05
    assert found.keys() == AGREEMENT.keys()


def test_a_profile_accounts_for_the_whole_time() -> None:
    shares = parts.measure(lambda: torch.bmm(*torch.randn(2, 50, 64, 64).unbind(0)), calls=3)

    assert tuple(shares) == parts.PARTS
    assert shares["attention core"] > 0
    assert shares["linear"] == 0
    assert sum(shares.values()) == pytest.approx(1, abs=0.05)


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
        lower = 4 * 2 * n * 24 * 24 + 2 * (2 * n * n * 24) + 2 * 2 * n * 24 * 48
        # The last layer: keys and values of all tokens; query, W^O and feed-forward of the first alone.
        last = 2 * 2 * n * 24 * 24 + 2 * 2 * 24 * 24 + 2 * (2 * n * 24) + 2 * 2 * 24 * 48
        expected += lower + last
    assert useful_flops(TINY, lengths) == expected
    feed_forward = 2 * 2 * 8 * 24 * 48 + 2 * 2 * 2 * 24 * 48
    assert useful_flops(TINY, lengths, 0.0) == feed_forward
    assert useful_flops(TINY, lengths, [0.5, 0.5]) == (expected + feed_forward) / 2


def test_lengths_are_those_of_product_search() -> None:
    lengths = query_title_lengths(20_000)
    assert abs(lengths.mean() - 25) < 0.5
    assert abs(np.quantile(lengths, 0.95) - 39) <= 2
    assert abs(np.quantile(lengths, 0.99) - 48) <= 2
    assert document_lengths(200).min() >= 96
    assert document_lengths(200).max() == 128


def test_a_missed_target_is_said() -> None:
    def result(share: float, speed: float, masked: float, saved: float, qwk: float) -> dict[str, Any]:
        def row(engine: str, against: float, saved: float | None = None) -> dict[str, Any]:
            ratios = (Ratio(speed, speed, speed), Ratio(against, against, against))
            return asdict(encoder.Row(SHAPES["base"].name, engine, 1.0, share, *ratios, saved=saved))

        rows = [row(encoder.OURS, 1.0), row(encoder.MASKED, masked), row("pruned", 1.3, saved)]
        return {"rows": rows, "agreement": AGREEMENT | {"qwk_bfloat16": qwk}}

    assert encoder.missed(result(0.95, 1.5, 0.98, 0.95, 0.5)) == []
    assert len(encoder.missed(result(0.85, 0.9, 0.9, 0.8, 0.4))) == 5
