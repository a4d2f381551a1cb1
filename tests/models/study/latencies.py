"""A latency table in which everything costs what it should, for tests that must not depend on a clock."""

from __future__ import annotations

import numpy as np

from models.checkpoint.config import ModelConfig
from models.study.latency import LatencyTable


def linear_table(
    config: ModelConfig, *, head: float = 1.0, unit: float = 0.25, half: float = 0.5
) -> LatencyTable:
    """Seconds of a batch of 100 tokens: `head` for each head, `unit` for each unit, `half` for each half."""
    heads = tuple(range(config.num_heads + 1))
    units = tuple(range(8, max(config.widths) + 1, 8))
    attention = np.array([[half + head * count for count in heads]])
    return LatencyTable(
        heads=heads, units=units, tokens=(100,), rows=(100,),
        attention=attention, attention_first=attention,
        feed_forward=np.array([[half + unit * count for count in units]]), other=np.array([1.0]),
        sequence_tokens=10, reads_first_tokens=False, checked=(), about={},
    )  # fmt: skip
