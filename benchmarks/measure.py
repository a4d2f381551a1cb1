"""Measures functions in turns (A B A B …), so that noise of the machine affects all of them."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from models.device import processor_features

LIMITS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "CT2_FORCE_CPU_ISA")
"""Variables that make a processor compute like an older one; a table says that they were set."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The speed of one side divided by that of another: median and range of the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def alternate(
    sides: Mapping[str, Callable[[], object]], rounds: int, inner: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of each call of each side, in turns, after one warm-up call each.

    inner: calls per timing, for functions that take only a few milliseconds.
    """
    for call in sides.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            started = time.perf_counter()
            for _ in range(inner):
                call()
            seconds[name].append((time.perf_counter() - started) / inner)
    return seconds


def ratio(seconds: Mapping[str, list[float]], fast: str, slow: str) -> Ratio:
    """Return how many times faster `fast` is than `slow`: the median and range of the rounds' ratios."""
    ratios = [b / a for a, b in zip(seconds[fast], seconds[slow], strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def machine() -> str:
    """Return a description of the machine and its software."""
    features = ", ".join(processor_features())
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    features += f"; limited by {' '.join(limits)}" if limits else ""
    return f"{platform.machine()} ({features}), {torch.get_num_threads()} threads, torch {torch.__version__}"
