"""The two attention cores beside each other by number of keys: which one a pack should use for which."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from benchmarks.measure import Ratio, alternate, ratio
from models.attention import FUSED_KEYS, attend_fused, attend_together

KEYS = (32, 64, 96, 128, 256, 512)
SCORES = 6_000_000  # of one call, whatever the number of keys
HEAD_SIZES = (16, 64)


def measure(rounds: int) -> list[dict[str, Any]]:
    """A row for each type, head width and number of keys. ratio: how many times faster the fused core is."""
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for size in HEAD_SIZES:
            for keys in KEYS:
                found = _measure_one(keys, size, dtype, rounds)
                rows.append({"dtype": str(dtype).removeprefix("torch."), "size": size, "keys": keys, **found})
    return rows


def _measure_one(keys: int, size: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    problems = SCORES // keys**2
    query, key, value, out = torch.randn(4, problems, keys, size).to(dtype).unbind(0)
    absent = torch.arange(keys - 1, problems * keys, 5 * keys)  # every fifth is a key shorter

    def side(core: Any) -> Any:
        def call() -> None:
            with torch.inference_mode():
                core(query, key, value, absent, out)

        return call

    sides = {"fused": side(attend_fused), "together": side(attend_together)}
    seconds = alternate(sides, rounds, inner=2)
    return {"ratio": asdict(ratio(seconds, "fused", "together"))}


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """A line for each type and head width, a column for each number of keys."""
    lines = [
        f"| fused × written-out scores; used from {FUSED_KEYS} keys on | "
        + " | ".join(f"{keys} keys" for keys in KEYS)
        + " |",
        "|---" * (len(KEYS) + 1) + "|",
    ]
    for dtype, size in dict.fromkeys((row["dtype"], row["size"]) for row in rows):
        cells = [str(Ratio(**row["ratio"])) for row in rows if (row["dtype"], row["size"]) == (dtype, size)]
        lines.append(f"| {dtype}, heads of {size} | {' | '.join(cells)} |")
    return "\n".join(lines)
