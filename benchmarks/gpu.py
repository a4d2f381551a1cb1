"""Tests and measures the network on a GPU: `make gpu`, in at most 10 minutes.

It needs torch (2.11 or newer), transformers, safetensors, tokenizers, numpy and pytest, and this tree. It
uses neither ray nor a network, so HTTP is left out. It writes gpu.json and gpu.md, anew after every part, and
gpu-tests.txt. With --dry, it tries every step on the CPU with a tiny network; its numbers then say nothing.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu_report import Row, write

if TYPE_CHECKING:  # an older torch lacks what it imports
    from benchmarks.gpu_rows import Bench

ROOT = Path(__file__).parents[1]
TESTS = ("tests/models/ops/test_gpu.py", "tests/models/ops/test_cuda.py")
TEST_SECONDS = 150

LIMIT_SECONDS = 590
"""When this time is over, the process ends, whatever it does; the rest of 10 minutes is for its start."""

PART_SECONDS = 60
"""A part begins only if this much time is left."""

LEAST_TORCH = (2, 11)

STDERR = 2
"""The descriptor of standard error; `sys.stderr` may have none, as under pytest."""


def tests(out: Path) -> list[Row]:
    """Run the `gpu` tests, and those of the stand-in, in a process of their own."""
    # Without pyproject.toml and conftest.py, which ask for more packages than these tests need.
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT), "--noconftest"]
    command += ["--import-mode=importlib", "-p", "no:cacheprovider", "-v", "-rs", *TESTS]
    report = out / "gpu-tests.txt"
    with report.open("wb") as file:  # not a pipe: what was written stays when the time is over
        try:
            done = subprocess.run(
                command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=TEST_SECONDS
            )
        except subprocess.TimeoutExpired:
            done = None
    lines = report.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
    last = lines[-1].strip("= ")
    if done is None:  # the last line is the test that ran
        return [Row("tests", f"not done after {TEST_SECONDS} s: {last}", "all pass", False)]
    return [Row("tests", last, "all pass", done.returncode == 0)]


def main() -> None:
    """Run every part and write what it found; a part that fails is reported, and the others still run."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    if tuple(map(int, torch.__version__.split(".")[:2])) < LEAST_TORCH:
        sys.exit(f"make gpu: torch {torch.__version__} is too old; install torch 2.11 or newer")
    if not options.dry and not torch.cuda.is_available():
        sys.exit("make gpu: torch sees no CUDA device here; DRY=1 tries the steps on the CPU")
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    from benchmarks import gpu_rows

    bench = gpu_rows.dry() if options.dry else gpu_rows.real()
    parts: dict[str, Callable[[], list[Row]]] = {"Tests": partial(tests, out)}
    parts |= {name: partial(part, bench) for name, part in gpu_rows.PARTS.items()}
    results = run(parts, began + LIMIT_SECONDS, lambda results: write(out, about(bench, began), results))
    if any(row.name in ("failed", "tests") and row.ok is False for rows in results.values() for row in rows):
        sys.exit(1)


def run(
    parts: Mapping[str, Callable[[], list[Row]]],
    end: float,
    report: Callable[[Mapping[str, list[Row]]], None],
) -> dict[str, list[Row]]:
    """Return the rows of each part, and report after each; what still runs at the time `end` is ended."""
    results: dict[str, list[Row]] = {}
    faulthandler.dump_traceback_later(end - time.monotonic(), exit=True, file=STDERR)
    try:
        for name, part in parts.items():
            if end - time.monotonic() < PART_SECONDS:
                results[name] = [Row("failed", "left out: no time", "runs", False)]
            else:
                results[name] = rows_of(part)
            for row in results[name]:
                print(f"{name}: {row.name}: {row.value} {row.target}", flush=True)
            report(results)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return results


def rows_of(part: Callable[[], list[Row]]) -> list[Row]:
    """Return a part's rows, or one that says how it failed: that must not cost the others their numbers."""
    try:
        return part()
    except Exception:
        traceback.print_exc()
        return [Row("failed", traceback.format_exc().strip().splitlines()[-1], "runs", False)]


def about(bench: Bench, began: float) -> dict[str, object]:
    """Return what the report says of the machine and of the run, which began at this time."""
    on_gpu = bench.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(bench.device) if on_gpu else "no GPU: a dry run",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "shape": bench.shape.name,
        "dtype": str(bench.dtype).removeprefix("torch."),
        "token budget": bench.tokens,
        "seconds": round(time.monotonic() - began),
        "HTTP": "left out: it needs ray",
    }


if __name__ == "__main__":
    main()
