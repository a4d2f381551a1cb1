"""`make gpu` without a GPU: every part runs, and both files are written."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks import gpu, workload
from benchmarks.gpu_rows import Bench, Row, accuracy, encoder, memory, service_like


def test_every_part_runs_and_is_written(tmp_path: Path) -> None:
    shape = workload.Shape("tiny", 32, 64, 500, layers=2, heads=2)
    bench = Bench(torch.device("cpu"), torch.float32, shape, 256, 2, dry=True)
    parts = {part.__name__: part(bench) for part in (accuracy, encoder, service_like, memory)}
    gpu.write(tmp_path, bench, parts | {"tests": [Row("tests", "1 failed", "all pass", False)]}, 1.0)

    assert [row.ok for row in parts["accuracy"]] == [True, True]
    assert json.loads((tmp_path / "gpu.json").read_text())["results"].keys() == {*parts, "tests"}
    page = (tmp_path / "gpu.md").read_text()
    assert "| tests | 1 failed | all pass | no |" in page
    assert "share of the products' rate" in page
