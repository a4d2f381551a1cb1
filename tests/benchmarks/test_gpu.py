"""`make gpu` without a GPU: every part runs, within its limit, and what it found is written."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_rows
from benchmarks.gpu_bench import Bench
from benchmarks.report import Row

pytestmark = pytest.mark.more


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
