"""The order in which heads go: by full and diagonal Fisher information, by Michel et al., by magnitude, by
layer, at random.

Every function returns the heads that the checkpoint holds, the first to go first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.attention import head_rows
from models.classifier import Classifier
from models.study.heads import Head, Heads

Floats = NDArray[np.float64]


def fisher(gradients: Floats) -> Floats:
    """Return the Fisher information of the gates, the mean over pairs of g·gᵀ.

    (n, layers, heads) → (layers·heads, layers·heads). It stands in for the Hessian of the loss at the intact
    network (Kwon et al. 2022, https://arxiv.org/abs/2204.09656, eq. 8): a change d of the gates raises the
    loss by ½·dᵀ·F·d.
    """
    flat = gradients.reshape(len(gradients), -1)
    return np.asarray(flat.T @ flat / len(flat))


def by_full_fisher(gradients: Floats, held: Sequence[Head]) -> Heads:
    """Remove heads one at a time, always the one that adds least to the cost of all that went.

    Removing the set S costs ½·Σ F[i, j] over i, j in S (Kwon et al. 2022, eq. 12). The first of two heads
    that do the same work is thus cheap, and the second is not.
    """
    information = fisher(gradients)
    heads = gradients.shape[2]
    left = [layer * heads + head for layer, head in held]
    with_gone = np.zeros(len(information))  # Σ F[i, j] over the j that went
    order = []
    while left:
        cost = [information[i, i] + 2 * with_gone[i] for i in left]
        gone = left.pop(int(np.argmin(cost)))
        with_gone += information[:, gone]
        order.append((gone // heads, gone % heads))
    return tuple(order)


def by_diagonal_fisher(gradients: Floats, held: Sequence[Head]) -> Heads:
    """Order by ascending F[i, i], the mean squared gradient: full Fisher without interactions."""
    return _ascending((gradients**2).mean(0), held)


def by_michel(gradients: Floats, held: Sequence[Head]) -> Heads:
    """Order by ascending mean |∂loss/∂gate|, each layer scaled to unit length (Michel et al. 2019, §4.1,
    https://arxiv.org/abs/1905.10650)."""
    importance = np.abs(gradients).mean(0)
    length = np.linalg.norm(importance, axis=1, keepdims=True)
    return _ascending(np.divide(importance, length, out=np.zeros_like(importance), where=length > 0), held)


def by_magnitude(classifier: Classifier, held: Sequence[Head]) -> Heads:
    """Order by ascending Frobenius norm of W^O·W^V, the linear map that a head applies to tokens."""
    norms = np.zeros((classifier.num_layers, classifier.num_heads))
    for number, (layer, kept) in enumerate(
        zip(classifier.network.layers, classifier.config.kept_heads, strict=True)
    ):
        if layer.heads is None:
            continue
        size, width = layer.heads.head_size, len(kept) * layer.heads.head_size
        value = layer.heads.query_key_value.weight[2 * width :].float()
        output = layer.heads.output.weight.float()
        for place, head in enumerate(kept):
            rows = head_rows([place], size)
            norms[number, head] = float((output[:, rows] @ value[rows]).norm())
    return _ascending(norms, held)


def from_the_top(held: Sequence[Head]) -> Heads:
    """Return the heads of the last layer first, so that the lower layers stay, whatever their heads do."""
    return tuple(sorted(held, reverse=True))


def at_random(held: Sequence[Head], seed: int) -> Heads:
    """Return a random order."""
    drawn = np.random.default_rng(seed).permutation(len(held))
    return tuple(held[i] for i in drawn)


def _ascending(importance: Floats, held: Sequence[Head]) -> Heads:
    return tuple(sorted(held, key=lambda head: float(importance[head])))
