"""`make gpu` without a GPU: every part runs, within its limit, and what it found is written."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_rows, workload
from benchmarks.gpu_rows import Bench
from benchmarks.report import Row
from models.batch import pack


def dry_run(out: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run `make gpu DRY=1` without its tests, and return gpu.md."""
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry", "--out", str(out)])
    with contextlib.suppress(SystemExit):
        gpu.main()
    return (out / "gpu.md").read_text()


def test_every_part_runs_and_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = dry_run(tmp_path / "out", monkeypatch)

    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [*gpu_rows.PARTS]
    assert "| failed |" not in page
    assert "transformers') | yes |" in page
    rows = {cells[1].strip(): cells for line in page.splitlines() if len(cells := line.split("|")) > 4}
    assert rows["share of the square product's rate"][3] == " ≥ 55% ", "the chip's rate, not the model's"
    assert not rows["share of the products' rate"][3].strip()
    assert [*gpu_rows.PARTS][-1] == "CUDA graph", "a failed capture may leave the process unusable"


def test_what_was_measured_stays_when_a_later_part_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: Bench) -> list[Row]:
        raise SystemExit

    monkeypatch.setattr(gpu_rows, "PARTS", {"First": lambda _: [Row("one", "1 ms")], "Second": dies})
    page = dry_run(tmp_path / "out", monkeypatch)
    assert "| one | 1 ms |" in page
    assert "Second" not in page


def test_a_part_that_does_not_fit_the_time_is_left_out_and_the_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "PART_SECONDS", gpu.LIMIT_SECONDS + 1)
    page = dry_run(tmp_path / "out", monkeypatch)
    assert page.count("| failed | left out: no time | runs | no |") == len(gpu_rows.PARTS)
    with pytest.raises(SystemExit) as raised:
        gpu.main()
    assert raised.value.code == 1


HANGS = """
import sys, time
from benchmarks import gpu, gpu_rows
gpu.LIMIT_SECONDS, gpu.PART_SECONDS = 2, 0
gpu_rows.PARTS = {"First": lambda bench: [], "Hangs": lambda bench: time.sleep(60)}
gpu.main()
"""


def test_a_part_that_hangs_is_ended_and_shown(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGS, "--dry", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=gpu.ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "in run" in done.stderr
    assert (tmp_path / "gpu.md").read_text().endswith("## First\n\nNothing was measured.\n")


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
