"""`make gpu` without a GPU: every part runs, within its limit, and what it found is written."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_report, gpu_rows, workload
from benchmarks.gpu_report import Row
from benchmarks.gpu_rows import Bench
from models.batch import pack


def dry_run(out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Run `make gpu DRY=1` with one test, and return the rows of gpu.json by part."""
    file = out.with_name("test_one.py")
    file.write_text("def test_passes(): pass\n")
    monkeypatch.setattr(gpu, "TESTS", (str(file),))
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry", "--out", str(out)])
    with contextlib.suppress(SystemExit):
        gpu.main()
    return json.loads((out / "gpu.json").read_text())["results"]  # type: ignore[no-any-return]


def test_every_part_runs_and_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = dry_run(tmp_path / "out", monkeypatch)

    rows = {row["name"]: row for part in results.values() for row in part}
    assert results.keys() == {"Tests", *gpu_rows.PARTS}
    assert "failed" not in rows
    assert rows["tests"]["ok"]
    assert [row["ok"] for row in results["Accuracy, shipped model"]] == [True, True]
    assert rows["share of the square product's rate"]["target"] == "≥ 55 %", (
        "the chip's rate, not the model's"
    )
    assert not rows["share of the products' rate"]["target"]
    assert [*results][-1] == "CUDA graph", "a failed capture may leave the process unusable"
    assert len([*(tmp_path / "out").iterdir()]) <= 8
    assert "| share of the products' rate |" in (tmp_path / "out" / "gpu.md").read_text()


def test_the_report_says_what_missed_its_target(tmp_path: Path) -> None:
    gpu_report.write(tmp_path, {"device": "a GPU"}, {"Tests": [Row("tests", "1 failed", "all pass", False)]})
    assert "| tests | 1 failed | all pass | no |" in (tmp_path / "gpu.md").read_text()


def test_what_was_measured_stays_when_a_later_part_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: Bench) -> list[Row]:
        raise SystemExit

    monkeypatch.setattr(gpu_rows, "PARTS", {"First": lambda _: [Row("one", "1 ms")], "Second": dies})
    results = dry_run(tmp_path / "out", monkeypatch)
    assert results.keys() == {"Tests", "First"}


def test_a_part_that_does_not_fit_the_time_is_left_out_and_the_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "PART_SECONDS", gpu.LIMIT_SECONDS + 1)
    results = dry_run(tmp_path / "out", monkeypatch)
    assert {row["value"] for part in results.values() for row in part} == {"left out: no time"}
    with pytest.raises(SystemExit) as raised:
        gpu.main()
    assert raised.value.code == 1


HANGS = """
import sys, time
from benchmarks import gpu, gpu_rows
gpu.tests = lambda out: []
gpu.LIMIT_SECONDS, gpu.PART_SECONDS = 2, 0
gpu_rows.PARTS = {"Hangs": lambda bench: time.sleep(60)}
gpu.main()
"""


def test_a_part_that_hangs_is_ended_and_shown(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGS, "--dry", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=gpu.ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "in rows_of" in done.stderr
    assert json.loads((tmp_path / "gpu.json").read_text())["results"] == {"Tests": []}


TOO_OLD = """
import sys, torch
torch.__version__ = "2.9.1+cu128"
sys.modules["torch.nn.attention.varlen"] = None
from benchmarks import gpu
gpu.main()
"""


def test_a_torch_that_is_too_old_is_one_sentence() -> None:
    command = [sys.executable, "-c", TOO_OLD, "--dry"]
    done = subprocess.run(command, cwd=gpu.ROOT, capture_output=True, text=True)
    assert done.stderr == "make gpu: torch 2.9.1+cu128 is too old; install torch 2.11 or newer\n"
    assert done.returncode == 1


def test_a_failed_capture_leaves_the_thread_on_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    current = ["own"]

    @contextlib.contextmanager
    def stream(name: str) -> Iterator[None]:
        before, current[0] = current[0], name
        yield
        current[0] = before

    class Capture:
        """As torch's: ending a failed capture raises before the thread leaves the capture's stream."""

        def __init__(self, _: object) -> None:
            pass

        def __enter__(self) -> None:
            current[0] = "capture"

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("operation failed due to a previous error during capture\nmore")

    cpu = gpu_rows.dry()
    network = cpu.network()
    monkeypatch.setattr(gpu_rows, "pack", lambda pairs, **_: pack(pairs, device=cpu.device))
    monkeypatch.setattr(Bench, "network", lambda _: network)
    monkeypatch.setattr(Bench, "median", lambda *_: 0.001)
    for name, stand_in in {
        "current_stream": lambda _: current[0],
        "stream": stream,
        "CUDAGraph": object,
        "graph": Capture,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    bench = Bench(torch.device("cuda", 0), torch.float32, cpu.shape, 256, 1, dry=False)

    (row,) = gpu_rows.graph(bench)
    assert row.value == "failed: operation failed due to a previous error during capture"
    assert current == ["own"]


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
