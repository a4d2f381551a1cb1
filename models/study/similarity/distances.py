"""The distance of two heads' attention patterns: Jensen–Shannon, from word to word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.classifier import Classifier
from models.study.base import Judged, Progress
from models.study.heads import held_heads
from models.study.pair_words import Words

Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class Distances:
    """Distances between the heads of a model, pair by pair.

    values: (pairs, heads, heads) float32, 0 (same attention) to 1 (none in common).
    query_of: (pairs,) the query of each.
    """

    values: Floats32
    query_of: NDArray[np.int64]


def jensen_shannon(first: Floats32, second: Floats32) -> Floats32:
    """Return the mean over words of √JSD (base 2) of what the heads attend to.

    (a, w, w) and (b, w, w) → (a, b).

    √JSD is a metric (Endres and Schindelin 2003), and so is its mean over words.
    """
    total = np.zeros((len(first), len(second)), np.float32)
    entropies = [-_x_log2_x(patterns).sum(-1) for patterns in (first, second)]  # (heads, w)
    for row in range(first.shape[1]):
        middle = (first[:, None, row] + second[None, :, row]) * np.float32(0.5)
        divergence = -_x_log2_x(middle).sum(-1)
        divergence -= (entropies[0][:, None, row] + entropies[1][None, :, row]) / 2
        total += np.sqrt(np.clip(divergence, 0, 1))
    return total / np.float32(first.shape[1])


def between_heads(classifier: Classifier, data: Judged, rows: Sequence[int], progress: Progress) -> Distances:
    """Return the distances between the heads of a model on the rows of the data."""
    distances = []
    for pattern in _patterns(classifier, data, rows):
        distances.append(jensen_shannon(pattern, pattern))
        progress.advance()
    return Distances(np.stack(distances), np.array([data.query_of[row] for row in rows], np.int64))


def _patterns(classifier: Classifier, data: Judged, rows: Sequence[int]) -> Iterator[Floats32]:
    heads = held_heads(classifier)
    for pair in classifier.tokenizer.encode([data.pairs[row] for row in rows]):
        words = Words.of(classifier.tokenizer, pair)
        yield words.whole_attention(classifier.attention(pair, heads))


def _x_log2_x(p: Floats32) -> Floats32:
    return np.asarray(p * np.log2(np.maximum(p, np.float32(1e-30))), np.float32)
