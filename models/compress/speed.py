"""Says whether int8 pays: how many times faster than floats it is here, as measured, or else by rule.

`headroom quantize` measures both formats in turns; a service goes by a rule.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from models.checkpoint.config import ModelConfig
from models.checkpoint.tokenizer import EncodedPair
from models.classifier import Classifier
from models.device import processor_features, resolve_dtype
from models.ops.integer_products import input_bits

logger = logging.getLogger("headroom.model")

ROUNDS = 7

NARROW = 256
"""Hidden size up to which int8 is expected to be slower than bfloat16 on AMX. Measured: 0.96 × at 192, 1.30 ×
at 768."""


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


def warn_if_slow(classifier: Classifier) -> None:
    """Log a warning if a checkpoint is int8 and expected to be slower than floats here."""
    if classifier.config.int8 and classifier.network.device.type == "cpu":
        notice = doubt(classifier.config)
        if notice is not None:
            logger.warning("%s: %s", classifier.name, notice)


def doubt(config: ModelConfig, speed: Speed | None = None) -> str | None:
    """Return a sentence that says that int8 is not faster than floats on this CPU; None if it is.

    config: of an int8 checkpoint. speed: what was measured here; None: go by rule.
    """
    dtype = str(resolve_dtype("auto", torch.device("cpu"), deterministic=False)).removeprefix("torch.")
    advice = f"serve the checkpoint that it was made from ({dtype}) on this processor"
    if not input_bits():
        return f"int8 is slower than {dtype} here, because float products stand in for integer ones; {advice}"
    if speed is not None:
        return None if speed.median >= 1 else f"int8 was measured at {speed} on this processor; {advice}"
    if "amx" in processor_features() and config.hidden_size <= NARROW:
        why = "because a narrow model gains little on AMX"
        return f"int8 is expected to be slower than {dtype} here, {why}; {advice}"
    return None
