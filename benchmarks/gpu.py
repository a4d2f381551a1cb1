"""Measures the network on a GPU: `make gpu`, which runs the GPU tests first.

It needs torch (2.11 or newer), transformers, safetensors, tokenizers, numpy and pydantic, and this tree; HTTP
is left out where ray is not installed. It writes gpu.md, anew after every part. With --dry, it tries
every step on the CPU with a tiny network; its numbers then say nothing.
"""

from __future__ import annotations

import argparse
import faulthandler
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.report import Row, targets

if TYPE_CHECKING:  # an older torch lacks what it imports
    from benchmarks.gpu_bench import Bench

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 430
"""When this time is over, the process ends, whatever it does; the tests have the rest of 10 minutes."""

PART_SECONDS = 60
"""A part begins only if this much time is left."""

LEAST_TORCH = (2, 11)

STDERR = 2
"""The descriptor of standard error; `sys.stderr` may have none, as under pytest."""


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
    from benchmarks import gpu_bench, gpu_rows

    bench = gpu_bench.dry() if options.dry else gpu_bench.real()
    parts = {name: partial(part, bench) for name, part in gpu_rows.PARTS.items()}
    results = run(parts, began + LIMIT_SECONDS, lambda results: write(out, about(bench, began), results))
    if any(row.name == "failed" for rows in results.values() for row in rows):
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
            try:
                if end - time.monotonic() < PART_SECONDS:
                    raise TimeoutError("left out: no time")
                results[name] = part()
            except Exception as error:  # it must not cost the others their numbers
                traceback.print_exc()
                results[name] = [Row("failed", str(error).strip() or type(error).__name__, "runs", ok=False)]
            for row in results[name]:
                print(f"{name}: {row.name}: {row.value} {row.target}", flush=True)
            report(results)
    finally:
        faulthandler.cancel_dump_traceback_later()
    return results


def write(out: Path, about: Mapping[str, object], results: Mapping[str, Sequence[Row]]) -> None:
    """Write gpu.md. about: the machine and the run; results: rows by part."""
    parts = [f"# On {about['device']}", "\n".join(f"- {key}: {value}" for key, value in about.items())]
    parts += [f"## {part}\n\n{targets(found)}" for part, found in results.items()]
    (out / "gpu.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


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
    }


if __name__ == "__main__":
    main()
