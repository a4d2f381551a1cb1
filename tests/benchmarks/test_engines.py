"""Engines take turns in processes of their own, and one that computes something else is not compared."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import checkpoints, engines
from benchmarks.workload import SHAPES, Shape
from headroom.models.device import has_native_bfloat16

pytestmark = pytest.mark.more

TINY = Shape("tiny", hidden=64, inner=128, vocabulary=46_000, layers=2, heads=4)
"""Large enough for logits that differ by more than what bfloat16 rounds."""

OURS = {"ours": "ours", "transformers": "ours"}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setattr(checkpoints, "MODELS", tmp_path)
    monkeypatch.setattr(checkpoints, "exported", checkpoints.checkpoint)  # no other formats: no other engines
    monkeypatch.setattr(checkpoints, "quantized", lambda _: None)
    monkeypatch.setattr(checkpoints, "BATCH", 2)
    return "tiny"


@pytest.mark.slow
def test_a_run_measures_ours_and_transformers_on_the_same_weights(tiny: str) -> None:
    report = engines.measure(2, [tiny], ["titles"], OURS | {"abacus": "ours"})

    assert "torch 2." in report.about
    assert "transformers 5." in report.about
    (lines,) = report.tables.values()
    found = {engines.without_setting(line["engine"]): line for line in lines}
    fastest = "bf16" if has_native_bfloat16(torch.device("cpu")) else "fp32"
    both = {"fp32", fastest}
    assert found.keys() == {f"{engine} {kind}" for engine in ("ours", "transformers") for kind in both}
    assert float(found["ours fp32"]["error"].rstrip("%")) < 0.1
    assert float(found[f"ours {fastest}"]["error"].rstrip("%")) < 30
    assert found[f"ours {fastest}"][f"ours {fastest} is ×"] == "1.00 (1.00 to 1.00)"
    assert found["transformers fp32"]["ours int8 is ×"] == ""
    (note,) = report.notes
    assert note.startswith("Not measured (tiny, query–title pairs, 25 tokens in the mean): abacus: ")


def test_errors_are_relative_to_the_spread_of_the_logits() -> None:
    right = np.array([[0.0, 4.0], [2.0, 0.0]])
    logits = {"transformers fp32 [sdpa]": right, "good": right + 0.01, "swapped": right[::-1]}
    errors = engines.errors_against(logits)
    assert errors["transformers fp32 [sdpa]"] == 0
    assert errors["good"] < 0.01
    assert errors["swapped"] > engines.MAX_ERROR
