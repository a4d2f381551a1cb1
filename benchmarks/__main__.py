"""`python -m benchmarks`: measures, prints the tables and puts them into docs/PERFORMANCE.md.

Example: python -m benchmarks --only encoder --rounds 20 --check
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import encoder
from benchmarks.workload import SHAPES
from models.device import processor_features

DOCUMENT = Path(__file__).parents[1] / "docs" / "PERFORMANCE.md"
RESULTS = Path(__file__).parents[1] / "docs" / "performance.json"
BEGIN, END = "<!-- encoder: begin -->", "<!-- encoder: end -->"


def main() -> int:
    """Exit status 0, or 1 where `--check` finds a target missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=["encoder"], help="measure this part alone")
    parser.add_argument("--rounds", type=int, default=20, help="alternations of each engine")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    parser.add_argument("--dry-run", action="store_true", help="print, and leave docs/ as it is")
    options = parser.parse_args()
    rows = []
    for name in SHAPES:
        print(f"measuring {SHAPES[name].name}, {options.rounds} rounds", file=sys.stderr, flush=True)
        rows += encoder.measure(name, options.rounds)
    table = as_markdown(rows)
    print(table)
    if not options.dry_run:
        RESULTS.write_text(json.dumps(as_json(rows), indent=2) + "\n", encoding="utf-8")
        text = DOCUMENT.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        after = rest.partition(END)[2]
        DOCUMENT.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    missed = missed_targets(rows)
    for line in missed:
        print(f"target missed: {line}", file=sys.stderr)
    return 1 if missed and options.check else 0


def as_markdown(rows: list[encoder.Row]) -> str:
    """The encoder table."""
    lines = [
        f"{machine()}; batches of 64 query–title pairs, 25 tokens in the mean.",
        "",
        "| shape | engine | pairs/s | share of the bf16 GEMM limit | × transformers bf16 | × ours bf16 |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.shape} | {row.engine} | {row.pairs_per_second:.0f} | {row.share_of_limit:.0%} "
        f"| {row.against_transformers} | {row.against_ours} |"
        for row in rows
    ]
    return "\n".join(lines)


def as_json(rows: list[encoder.Row]) -> dict[str, object]:
    """The same for programs."""
    return {"schema": 1, "machine": machine(), "encoder": [asdict(row) for row in rows]}


def machine() -> str:
    """What it was measured on."""
    features = ", ".join(processor_features())
    return f"{platform.machine()} ({features}), {torch.get_num_threads()} threads, torch {torch.__version__}"


def missed_targets(rows: list[encoder.Row]) -> list[str]:
    """The targets of docs/PERFORMANCE.md that this run does not reach, in words."""
    missed = []
    for row in rows:
        if row.engine == encoder.OURS and row.against_transformers.median <= 1:
            missed.append(f"{row.shape}: slower than transformers bf16")
        if row.engine == encoder.OURS and row.shape == SHAPES["base"].name and row.share_of_limit < 0.9:
            missed.append(f"{row.shape}: {row.share_of_limit:.0%} of the GEMM limit, target 90 %")
        if row.engine == encoder.MASKED and row.against_ours.median < 0.97:
            missed.append(f"{row.shape}: masks cost {1 - row.against_ours.median:.1%}, target 3 %")
    return missed


if __name__ == "__main__":
    sys.exit(main())
