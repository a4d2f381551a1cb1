"""Measures in turns (A B A B …), so that noise of the machine affects all sides."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from headroom.models.cores import processor_features

K = TypeVar("K")
T = TypeVar("T")
LIMITS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "CT2_FORCE_CPU_ISA")
"""Variables that make a processor compute like an older one; a page says that they were set."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median and the range of the rounds' ratios."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
        """Return the ratio of two sides, round by round."""
        ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def text(self, spec: str = ".2f") -> str:
        """Return text such as `1.20 (1.10 to 1.30)`."""
        return f"{self.median:{spec}}{self.range(spec)}"

    def range(self, spec: str = ".2f") -> str:
        """Return text such as ` (1.10 to 1.30)`."""
        return f" ({self.low:{spec}} to {self.high:{spec}})"


def turns(sides: Mapping[K, Callable[[int], T]], rounds: int) -> dict[K, list[T]]:
    """Return what each side returns in each round. A side gets the round's number, from 0."""
    results: dict[K, list[T]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            results[name].append(side(number))
    return results


def alternate(
    sides: Mapping[str, Callable[[], object]], rounds: int, inner: int = 1, warm_ups: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of each call of each side, in turns.

    inner: calls per timing, for functions that take only a few milliseconds. warm_ups: calls of each side
    before; a head mask needs two, because its heads are cut out when it is used a second time.
    """

    def timed(call: Callable[[], object]) -> Callable[[int], float]:
        def side(_: int) -> float:
            began = time.perf_counter()
            for _ in range(inner):
                call()
            return (time.perf_counter() - began) / inner

        return side

    for _ in range(warm_ups):
        for call in sides.values():
            call()
    return turns({name: timed(call) for name, call in sides.items()}, rounds)


def ratio(seconds: Mapping[str, list[float]], fast: str, slow: str) -> Ratio:
    """Return how many times faster `fast` is than `slow`, round by round."""
    return Ratio.of(seconds[slow], seconds[fast])


def machine() -> str:
    """Return a description of the machine and its software."""
    features = ", ".join(processor_features())
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    features += f"; limited by {' '.join(limits)}" if limits else ""
    return f"{platform.machine()} ({features}), {torch.get_num_threads()} threads, torch {torch.__version__}"
