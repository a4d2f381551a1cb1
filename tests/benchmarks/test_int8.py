"""The int8 section measures every engine, compares accuracy, and says what it missed; no time limits."""

from __future__ import annotations

import copy

import pytest

from benchmarks import int8
from benchmarks.workload import SHAPES, Shape


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_run_has_a_row_for_every_engine_and_format(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Shape("tiny", hidden=24, inner=48, vocabulary=100, layers=2, heads=2)
    monkeypatch.setitem(SHAPES, "tiny", tiny)
    monkeypatch.setattr("models.compress.quantize.TOKENS", 200)

    result = int8.measure(rounds=2, shapes=["tiny"], limit=20)

    engines = [*int8.formats(), int8.INT8, int8.MASKED, int8.HALF]
    assert [row["engine"] for row in result["speed"]] == engines
    assert all(row["pairs_per_second"] > 0 and row["share_of_limit"] > 0 for row in result["speed"])
    compared = [name for name in (int8.BF16, int8.INT8) if name == int8.INT8 or name in engines]
    assert {(row["head_mask"], row["format"]) for row in result["accuracy"]} == {
        (mask, name) for mask in int8.MASKS for name in compared
    }
    table = int8.as_markdown(result)
    assert table.count("\n| tiny |") == len(engines)
    assert table.count("\n| `") == 3 * len(compared)


@pytest.mark.parametrize("floats", [int8.BF16, int8.FP32])
def test_a_missed_target_is_said(floats: str) -> None:
    def ratio(value: float) -> dict[str, float]:
        return {"median": value, "low": value, "high": value}

    base = SHAPES["base"].name
    reached = {
        "speed": [
            {
                "shape": base,
                "engine": int8.INT8,
                "floats": floats,
                "over_floats": ratio(1.8),
                "over_int8": ratio(1),
            },
            {
                "shape": base,
                "engine": int8.MASKED,
                "floats": floats,
                "over_floats": ratio(1.7),
                "over_int8": ratio(0.98),
            },
        ],
        "accuracy": [{"head_mask": "none", "format": int8.INT8, "change": {"qwk": {"value": -0.004}}}],
    }
    assert int8.missed(reached) == []

    fallen = copy.deepcopy(reached)
    fallen["speed"][0]["over_floats"] = ratio(1.5)
    fallen["speed"][1]["over_int8"] = ratio(0.9)
    fallen["accuracy"][0]["change"]["qwk"]["value"] = -0.02
    assert len(int8.missed(fallen)) == 3
