"""The int8 section measures every format, and compares accuracy; no time limits."""

from __future__ import annotations

import pytest
import torch

from benchmarks import int8
from benchmarks.report import Report
from benchmarks.workload import SAMPLE, SHAPES, Shape, encoder, network
from models.checkpoint.hub import DEFAULT
from models.classifier import Classifier
from models.quality.labelled import read_labelled


@pytest.mark.usefixtures("one_thread")
def test_speed_has_a_line_for_every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = Shape("tiny", hidden=24, inner=48, vocabulary=100, layers=2, heads=2)
    monkeypatch.setitem(SHAPES, "tiny", tiny)
    model, report = network(tiny), Report("")
    networks = {name: encoder(model, int8.DTYPES[name]) for name in int8.formats()}
    int8.speed(report, "tiny", networks | {int8.INT8: encoder(model, torch.bfloat16)}, rounds=2)

    engines = [f"ours {name}" for name in (*int8.formats(), int8.INT8, int8.MASKED)]
    assert [line["engine"] for line in report.tables["tiny"]] == engines
    assert report.rows[-1].name == "tiny: cost of masks"


def test_accuracy_is_compared_under_every_mask() -> None:
    report = Report("")
    exact, other = (Classifier.load(DEFAULT, "cpu", name) for name in ("float32", "bfloat16"))
    test = read_labelled(SAMPLE / "test.jsonl.gz", grades=5)[:20]
    int8.accuracy(report, {int8.BF16: other, int8.FP32: exact, int8.INT8: other}, test)

    assert len(report.rows) == 2 * len(int8.MASKS)
    assert [row.target for row in report.rows[:2]] == ["", "QWK ≥ −0.005"]
    assert "have the same grade" in report.rows[0].value
