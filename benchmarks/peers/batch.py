"""A padded batch, and its format between processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of token ids, padded with 0 to the longest.

    ids, mask, segments: (rows, longest) int64. texts: the same rows as (query, title).
    """

    ids: np.ndarray
    mask: np.ndarray
    segments: np.ndarray
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def lengths(self) -> np.ndarray:
        """Return the tokens of each row, (rows,) int64."""
        lengths: np.ndarray = self.mask.sum(axis=1)
        return lengths

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """Return the arrays by the names that transformers gives them."""
        return {"input_ids": self.ids, "attention_mask": self.mask, "token_type_ids": self.segments}


def inputs_of(model: Any) -> list[str]:
    """Return the names of the inputs that a transformers model takes; not all know token types."""
    types = ["token_type_ids"] if hasattr(model.config, "type_vocab_size") else []
    return ["input_ids", "attention_mask", *types]


Engine = Callable[[Batch], np.ndarray]
"""Returns the logits (rows, labels) float32 of a batch, in its order."""

Engines = Mapping[str, Engine]
"""Engines by name. `NAME [SETTING]` are settings of one engine, of which the fastest is measured."""


def threads_of_worker() -> int:
    """Return the threads of a server's engine: those of its process, divided by its workers."""
    return int(os.environ.get("OMP_NUM_THREADS", "2"))


def padded(rows: list[tuple[np.ndarray, int]], texts: Sequence[tuple[str, str]] = ()) -> Batch:
    """Return a batch of rows, each a sequence's token ids and the length of its first segment."""
    longest = max(len(ids) for ids, _ in rows)
    shape = (len(rows), longest)
    ids, mask, segments = (np.zeros(shape, np.int64) for _ in range(3))
    for row, (tokens, first_segment) in enumerate(rows):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
        segments[row, first_segment : len(tokens)] = 1
    return Batch(ids, mask, segments, tuple(texts))
