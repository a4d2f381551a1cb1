"""The attention kernels beside each other by number of keys: ours, and torch's without it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Ratio, alternate, ratio
from benchmarks.workload import pairs
from models.batch import pack
from models.ops import kernels
from models.ops.torch import TorchOps

KEYS = (8, 16, 24, 32, 64, 128, 256, 512)
SCORES = 500_000  # of one call and head, whatever the number of keys
HEADS = 12
HEAD_SIZES = (16, 64)


def measure(rounds: int) -> list[dict[str, Any]]:
    """A row for each type, head width and number of keys. ratio: how many times faster ours is than torch's
    operators, with the copies that they need; None where ours cannot be had."""
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for size in HEAD_SIZES:
            for keys in KEYS:
                found = _measure_one(keys, size, dtype, rounds)
                rows.append({"dtype": str(dtype).removeprefix("torch."), "size": size, "keys": keys} | found)
    return rows


def _measure_one(keys: int, size: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    ours = kernels.fitting(dtype, size)
    if ours is None:
        return {"ratio": None}
    lengths = keys - np.arange(max(1, SCORES // keys**2)) % 5 // 4  # every fifth is a key shorter
    batch = pack(pairs(lengths, 1000), device=torch.device("cpu"))
    projected = torch.randn(len(batch.ids), 3 * HEADS * size).to(dtype)
    plain = TorchOps(torch.device("cpu"), dtype)

    with torch.inference_mode():
        sides = {
            "ours": lambda: ours.attention(projected, batch.offsets, HEADS),
            "torch": lambda: plain.attention(projected, batch, HEADS),
        }
        seconds = alternate(sides, rounds, inner=2)
    return {"ratio": asdict(ratio(seconds, "ours", "torch"))}


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """A line for each type and head width, a column for each number of keys."""
    lines = [
        "| attention: our kernel × torch's operators | " + " | ".join(f"{keys} keys" for keys in KEYS) + " |",
        "|---" * (len(KEYS) + 1) + "|",
    ]
    for dtype, size in dict.fromkeys((row["dtype"], row["size"]) for row in rows):
        found = [row["ratio"] for row in rows if (row["dtype"], row["size"]) == (dtype, size)]
        cells = ["" if one is None else str(Ratio(**one)) for one in found]
        lines.append(f"| {dtype}, heads of {size} | {' | '.join(cells)} |")
    return "\n".join(lines)
