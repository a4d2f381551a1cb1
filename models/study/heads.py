"""The heads of a checkpoint and the masks that switch some of them off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.classifier import Classifier
from models.study.base import Matrix

Head = tuple[int, int]
"""(layer, head), numbered as before pruning."""

Heads = tuple[Head, ...]


def held_heads(classifier: Classifier) -> Heads:
    """Return the heads that the checkpoint still holds, ascending."""
    return tuple((layer, head) for layer, kept in enumerate(classifier.config.kept_heads) for head in kept)


def weights_without(gone: Sequence[Head], shape: tuple[int, int]) -> Matrix:
    """Return head weights (layers, heads): 0 for the heads `gone`, 1 for all others."""
    weights = np.ones(shape, np.float32)
    for head in gone:
        weights[head] = 0
    return weights


def name(head: Head) -> str:
    """Return a head as the mask grammar writes it: 3.11."""
    return f"{head[0]}.{head[1]}"
