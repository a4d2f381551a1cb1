"""A batch as engines that pad want it, and how it travels between processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
        """(rows,) int64, tokens of each row."""
        return self.mask.sum(axis=1)


Engine = Callable[[Batch], np.ndarray]
"""Logits (rows, labels) float32 of a batch, in its order."""

Engines = Mapping[str, Engine]
"""By name. `NAME [SETTING]` are settings of one engine, of which the fastest is measured."""


def threads_of_worker() -> int:
    """Threads of a server's engine: what its process was started with, divided by its workers."""
    return int(os.environ.get("OMP_NUM_THREADS", "2"))


def padded(rows: list[tuple[np.ndarray, int]], texts: list[tuple[str, str]] | None = None) -> Batch:
    """rows: token ids of each sequence, and how many of them are its first segment."""
    longest = max(len(ids) for ids, _ in rows)
    shape = (len(rows), longest)
    ids, mask, segments = (np.zeros(shape, np.int64) for _ in range(3))
    for row, (tokens, first_segment) in enumerate(rows):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
        segments[row, first_segment : len(tokens)] = 1
    return Batch(ids, mask, segments, tuple(map(tuple, texts or [])))
