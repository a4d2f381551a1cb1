"""Measures how many times faster int8 is than floats on this machine."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier

ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Speed:
    """The pairs/s of int8 divided by those of `dtype`: median and range of the rounds."""

    dtype: str
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} × {self.dtype} ({self.low:.2f} to {self.high:.2f})"


def measure(
    floats: Classifier,
    int8: Classifier,
    pairs: Sequence[EncodedPair],
    progress: Callable[[int], None] = lambda _: None,
) -> Speed:
    """Compute one batch of pairs with both classifiers in turns, after a warm-up of each.

    progress: called with the number of rounds done, of ROUNDS.
    """

    def seconds(side: Classifier) -> float:
        started = time.perf_counter()
        side.forward(pairs)
        return time.perf_counter() - started

    ratios = []
    for number in range(1 + ROUNDS):
        ratio = seconds(floats) / seconds(int8)
        if number:
            ratios.append(ratio)
            progress(number)
    return Speed(floats.network.number_format, statistics.median(ratios), min(ratios), max(ratios))
