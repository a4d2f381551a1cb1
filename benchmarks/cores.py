"""Compares our attention kernel with torch's operators, by number of keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Ratio, alternate, ratio
from benchmarks.workload import pairs
from models.batch import pack
from models.ops import kernel_library
from models.ops.torch import TorchOps

KEYS = (8, 16, 24, 32, 64, 128, 256, 512)
SCORES = 500_000  # attention scores of one call and head, for any number of keys
HEADS = 12
HEAD_SIZES = (16, 64)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Return one row per type, head width and number of keys.

    ratio: how many times faster our kernel is than torch's operators with the copies that they need; None if
    our kernel is not available.
    """
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for size in HEAD_SIZES:
            for keys in KEYS:
                result = _measure_one(keys, size, dtype, rounds)
                rows.append({"dtype": str(dtype).removeprefix("torch."), "size": size, "keys": keys} | result)
    return rows


def _measure_one(keys: int, size: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    ours = kernel_library.fitting(dtype, size)
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
    """Return a table with one line per type and head width, and one column per number of keys."""
    lines = [
        "| attention: our kernel × torch's operators | " + " | ".join(f"{keys} keys" for keys in KEYS) + " |",
        "|---" * (len(KEYS) + 1) + "|",
    ]
    for dtype, size in dict.fromkeys((row["dtype"], row["size"]) for row in rows):
        ratios = [row["ratio"] for row in rows if (row["dtype"], row["size"]) == (dtype, size)]
        cells = ["" if ratio is None else str(Ratio(**ratio)) for ratio in ratios]
        lines.append(f"| {dtype}, heads of {size} | {' | '.join(cells)} |")
    return "\n".join(lines)
