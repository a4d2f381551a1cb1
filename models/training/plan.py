"""Chooses the number, size and rate of training steps by the pairs and the network.

A step on a few dozen pairs moves a network as far as one on hundreds, and too few steps teach it nothing:
with 200 pairs in one batch, three epochs are three steps. So few pairs are cut into more batches and trained
on for more epochs (Zhang et al. 2021, "Revisiting Few-sample BERT Fine-tuning"; Mosbach et al. 2021,
"On the Stability of Fine-tuning BERT", who also warm up over the first tenth of the steps).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from models.training.loop import Schedule

LEAST_STEPS = 150
EPOCHS = 3
BATCH_TOKENS = 4096
"""Padded tokens of a batch, if there are enough pairs for LEAST_STEPS such batches in EPOCHS."""

LEAST_PAIRS = 16
"""So many pairs of mean length fit into the smallest batch."""

RATE, WIDTH = 5e-5, 768
"""The usual peak rate of a network as wide as BERT-base. With Adam, the best rate is in inverse proportion to
the width (Yang et al. 2022, "Tensor Programs V")."""

WARM_UP = 0.1
DECAY = 0.9
"""Shares of the steps: the rate rises over the first tenth and falls to 0 over the others."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A training plan.

    batches: per epoch, each of at most batch_tokens padded tokens. rate: the peak rate.
    """

    batch_tokens: int
    batches: int
    epochs: int
    rate: float

    @property
    def steps(self) -> int:
        return self.batches * self.epochs

    @property
    def schedule(self) -> Schedule:
        warmup = max(1, math.ceil(WARM_UP * self.steps))
        return Schedule(steps=self.steps, rate=self.rate, warmup=warmup, decay=DECAY)


def plan_for(
    lengths: Sequence[int],
    *,
    width: int,
    epochs: int | None = None,
    rate: float | None = None,
) -> Plan:
    """Return the plan for pairs of these lengths in tokens and a network of this width.

    epochs, rate: used as they are if they are given.
    """
    enough = sum(lengths) * EPOCHS // LEAST_STEPS
    batch_tokens = min(BATCH_TOKENS, max(enough, LEAST_PAIRS * sum(lengths) // len(lengths)))
    batches = len(grouped(lengths, batch_tokens=batch_tokens))
    if epochs is None:
        epochs = max(EPOCHS, math.ceil(LEAST_STEPS / batches))
    if rate is None:
        rate = RATE * WIDTH / width
    return Plan(batch_tokens, batches, epochs, rate)


def grouped(
    lengths: Sequence[int], *, batch_tokens: int, sizes: Sequence[int] | None = None
) -> list[list[int]]:
    """Group sequences of similar length, so that a group's padded size is at most `batch_tokens`.

    sizes: if each item is several sequences that stay together, their number; `lengths` are of the longest.
    Returns the indices of each group. An item longer than `batch_tokens` is a group of its own.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[list[int]] = []
    sequences = 0
    for index in order:  # ascending, so the newest is the longest of its group
        size = 1 if sizes is None else sizes[index]
        if groups and lengths[index] * (sequences + size) <= batch_tokens:
            groups[-1].append(index)
            sequences += size
        else:
            groups.append([index])
            sequences = size
    return groups
