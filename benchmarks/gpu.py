"""Tests and measures the network on a GPU: `make gpu`, in at most 10 minutes.

It needs torch (2.11 or newer), transformers, safetensors, tokenizers, numpy and pytest, and this tree. It
uses neither ray nor a network, so HTTP is left out. It writes gpu.json, gpu.md and gpu-tests.txt. With --dry,
it tries every step on the CPU with a tiny network; its numbers then say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import workload
from benchmarks.gpu_rows import Bench, Row, accuracy, encoder, memory, service_like

ROOT = Path(__file__).parents[1]
TESTS = ("tests/models/ops/test_gpu.py", "tests/models/ops/test_cuda.py")
TEST_SECONDS = 150


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
    """Run every part; a part that fails is reported, and the others still run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        sys.exit("make gpu: torch sees no CUDA device here; DRY=1 tries the steps on the CPU")
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.dry:
        tiny = workload.Shape("tiny, 2 × 2 × 32", 32, 64, 500, layers=2, heads=2)
        bench = Bench(torch.device("cpu"), torch.float32, tiny, 512, 3, dry=True)
    else:
        device = torch.device("cuda", torch.cuda.current_device())
        half = torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
        bench = Bench(device, half, workload.SHAPES["base"], 16_384, 30, dry=False)
    parts: dict[str, Callable[[], list[Row]]] = {
        "Tests": lambda: tests(out),
        "Accuracy, shipped model": lambda: accuracy(bench),
        "Full batches": lambda: encoder(bench),
        "As a replica uses it": lambda: service_like(bench),
        "Memory": lambda: memory(bench),
    }
    results: dict[str, list[Row]] = {}
    began = time.monotonic()
    for name, part in parts.items():
        try:
            results[name] = part()
        except Exception:  # a broken part must not cost the others their numbers
            results[name] = [Row("failed", traceback.format_exc().strip().splitlines()[-1], "runs", False)]
            traceback.print_exc()
        for row in results[name]:
            print(f"{name}: {row.name}: {row.value} {row.target}", flush=True)
    write(out, bench, results, time.monotonic() - began)
    if any(row.name in ("failed", "tests") and row.ok is False for rows in results.values() for row in rows):
        sys.exit(1)


def write(out: Path, bench: Bench, results: dict[str, list[Row]], seconds: float) -> None:
    """Write gpu.json and gpu.md."""
    name = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "no GPU: a dry run"
    about = {
        "device": name,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "shape": bench.shape.name,
        "dtype": str(bench.dtype).removeprefix("torch."),
        "token budget": bench.tokens,
        "seconds": round(seconds),
        "HTTP": "left out: it needs ray",
    }
    rows = {part: [dataclasses.asdict(row) for row in found] for part, found in results.items()}
    (out / "gpu.json").write_text(json.dumps({"about": about, "results": rows}, indent=1), encoding="utf-8")
    lines = [f"# On {name}", "", *(f"- {key}: {value}" for key, value in about.items())]
    for part, found in results.items():
        lines += ["", f"## {part}", "", "| what | measured | target | met |", "|---|---|---|---|"]
        lines += [f"| {row.name} | {row.value} | {row.target} | {_yes_or_no(row.ok)} |" for row in found]
    (out / "gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _yes_or_no(ok: bool | None) -> str:
    return "" if ok is None else "yes" if ok else "no"


if __name__ == "__main__":
    main()
