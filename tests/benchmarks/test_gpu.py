"""`make gpu` without a GPU: every part runs, and both files are written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
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


def test_many_calls_may_share_one_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = workload.Shape("tiny", 32, 64, 500, layers=2, heads=2)
    bench = Bench(torch.device("cpu"), torch.float32, shape, 256, 1, dry=True)
    events: list[str] = []
    monkeypatch.setattr(Bench, "wait", lambda _: events.append("wait"))
    bench.median(lambda: events.append("call"), 20)
    assert events == ["wait", *["call"] * 20, "wait"] * 3


def test_the_tests_report_names_each_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "test_one.py"
    file.write_text("def test_passes(): pass\n")
    monkeypatch.setattr(gpu, "TESTS", (str(file),))
    (row,) = gpu.tests(tmp_path)
    assert row.ok
    assert row.value.startswith("1 passed in ")
    assert "::test_passes PASSED" in (tmp_path / "gpu-tests.txt").read_text()


def test_tests_that_hang_leave_what_they_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho test_x.py::test_hangs\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(gpu, "TEST_SECONDS", 0.8)
    assert gpu.tests(tmp_path) == [
        Row("tests", "not done after 0.8 s: test_x.py::test_hangs", "all pass", False)
    ]
    assert (tmp_path / "gpu-tests.txt").read_text() == "test_x.py::test_hangs\n"
