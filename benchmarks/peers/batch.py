"""The texts that every engine takes, and the results that it returns."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np


class Batch(NamedTuple):
    """Rows padded with 0 to the longest: arrays (rows, longest) int64, with the names of transformers."""

    input_ids: np.ndarray
    attention_mask: np.ndarray
    token_type_ids: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Return the tokens of each row, (rows,) int64."""
        lengths: np.ndarray = self.attention_mask.sum(axis=1)
        return lengths


Engine = Callable[[Batch], np.ndarray]
"""Returns the logits (rows, labels) float32 of a batch, in its order."""

Engines = Mapping[str, Engine]
"""Engines by name. `NAME [SETTING]` are settings of one engine, of which the fastest is measured."""


def padded(rows: list[tuple[np.ndarray, int]]) -> Batch:
    """Return a batch of rows, each a sequence's token ids and the length of its first segment."""
    longest = max(len(ids) for ids, _ in rows)
    shape = (len(rows), longest)
    ids, mask, segments = (np.zeros(shape, np.int64) for _ in range(3))
    for row, (tokens, first_segment) in enumerate(rows):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
        segments[row, first_segment : len(tokens)] = 1
    return Batch(ids, mask, segments)
