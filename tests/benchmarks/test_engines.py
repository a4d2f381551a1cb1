"""Engines take turns in processes of their own, and one that computes something else is not compared."""

from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from benchmarks import checkpoints, engines, waiting
from benchmarks.peers.engines import read_workload
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


@pytest.mark.slow
def test_spinning_threads_are_compared_idle_and_beside_other_programs(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    spins = {waiting.OURS: "7", waiting.GNU: "8"}  # few, since the other tests' processes wait too
    settings = {
        name: {"GOMP_SPINCOUNT": count, "OMP_DISPLAY_ENV": "VERBOSE"} for name, count in spins.items()
    }
    monkeypatch.setattr(waiting, "SETTINGS", settings)
    report = waiting.measure(1, calls=1, shape=tiny)
    assert report.tables.keys() == {"idle", "beside other programs"}
    for lines in report.tables.values():
        assert [line["batch"] for line in lines] == ["one pair", "20 pairs", "64 pairs"]
        assert all(line.keys() == {"batch", *spins} for line in lines)
    assert len(report.rows) == 6
    shown = capfd.readouterr().err  # what OpenMP itself reads
    assert all(f"GOMP_SPINCOUNT = '{count}'" in shown for count in spins.values())


def test_other_programs_end_with_the_measurement() -> None:
    before = psutil.Process().children()
    with waiting.other_programs(2):
        assert len(psutil.Process().children()) == len(before) + 2
    assert psutil.Process().children() == before


def test_with_avx2_alone_float32_and_int8_are_compared_with_the_best_peer_of_their_format() -> None:
    seconds = {
        "ours fp32": [1.0, 1.0],
        "transformers fp32 [sdpa]": [1.6, 1.6],
        "OpenVINO fp32": [1.5, 1.5],
        "onnxruntime fp32 [as exported]": [1.4, 1.4],
        "ours int8": [1.0, 1.0],
        "CTranslate2 int8": [1.3, 1.3],
        "onnxruntime int8 [dynamic, fused]": [1.05, 1.05],
    }
    rows = [engines.target("", seconds, *target) for target in engines.AVX2_TARGETS["shipped", "titles"]]
    assert [(row.name, row.value, row.target, row.ok) for row in rows] == [
        ("ours fp32 × onnxruntime fp32", "1.40 (1.40 to 1.40)", "≥ 1.35", True),
        ("ours int8 × onnxruntime int8", "1.05 (1.05 to 1.05)", "≥ 1.10", False),
    ]
    del seconds["OpenVINO fp32"]
    row = engines.target("", seconds, *engines.AVX2_TARGETS["base", "titles"][0])
    assert (row.value, row.ok) == ("not measured: OpenVINO fp32", False)


def test_ours_is_compared_with_transformers_on_batches_of_similar_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mixed batch of 64 titles would be padded to 1.7 times its tokens, which flatters us."""
    seconds = {"ours bf16": [1.0, 2.0], "transformers fp32 [eager]": [6.0, 12.6]}
    (row,) = [
        engines.target("", seconds, *target)
        for target in engines.TARGETS["base", "titles"]
        if engines.REFERENCE in target[1]
    ]
    assert (row.name, row.value, row.target, row.ok) == (
        "ours bf16 × transformers fp32",
        "6.15 (6.00 to 6.30)",
        "≥ 4.50",
        True,
    )
    monkeypatch.setattr(checkpoints, "MODELS", tmp_path)
    batches = read_workload(checkpoints.workload("titles", "shipped"))
    computed = sum(batch.input_ids.size for batch in batches)
    assert computed < 1.4 * sum(batch.lengths.sum() for batch in batches)


def test_errors_are_relative_to_the_spread_of_the_logits() -> None:
    right = np.array([[0.0, 4.0], [2.0, 0.0]])
    logits = {"transformers fp32 [sdpa]": right, "good": right + 0.01, "swapped": right[::-1]}
    errors = engines.errors_against(logits)
    assert errors["transformers fp32 [sdpa]"] == 0
    assert errors["good"] < 0.01
    assert errors["swapped"] > engines.MAX_ERROR
