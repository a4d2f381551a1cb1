"""The order in which heads go: by full Fisher information, by Michel et al., by magnitude, at random.

Every order holds the heads of the checkpoint, the first to go first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.attention import head_rows
from models.classifier import Classifier
from models.study.base import Head, Heads

Floats = NDArray[np.float64]


def by_full_fisher(gradients: NDArray[np.floating], held: Sequence[Head]) -> Heads:
    """Remove heads one at a time, always the one that adds least to the cost of all that went.

    gradients: (n, layers, heads). The Fisher information F of the gates, the mean over pairs of g·gᵀ,
    stands in for the Hessian of the loss at the intact network: removing the set S costs ½·Σ F[i, j] over
    i, j in S (Kwon et al. 2022, https://arxiv.org/abs/2204.09656, eq. 12). The first of two heads that do
    the same work is thus cheap, and the second is not.
    """
    flat = gradients.reshape(len(gradients), -1).astype(np.float64)
    information, heads = flat.T @ flat / len(flat), gradients.shape[2]
    left = [layer * heads + head for layer, head in held]
    with_gone = np.zeros(len(information))  # Σ F[i, j] over the j that went
    order = []
    while left:
        gone = left.pop(int(np.argmin([information[i, i] + 2 * with_gone[i] for i in left])))
        with_gone += information[:, gone]
        order.append((gone // heads, gone % heads))
    return tuple(order)


def by_michel(gradients: NDArray[np.floating], held: Sequence[Head]) -> Heads:
    """Order by ascending mean |∂loss/∂gate|, each layer scaled to unit length (Michel et al. 2019, §4.1,
    https://arxiv.org/abs/1905.10650)."""
    importance = np.abs(gradients).mean(0, dtype=np.float64)
    length = np.linalg.norm(importance, axis=1, keepdims=True)
    return _ascending(importance / np.where(length > 0, length, 1), held)


def by_magnitude(classifier: Classifier, held: Sequence[Head]) -> Heads:
    """Order by ascending norm of W^O·W^V."""
    return _ascending(head_norms(classifier), held)


def at_random(held: Sequence[Head], seed: int) -> Heads:
    """Return a random order."""
    return tuple(held[i] for i in np.random.default_rng(seed).permutation(len(held)))


def head_norms(classifier: Classifier) -> Floats:
    """Return the Frobenius norm of W^O·W^V, the linear map that a head applies to tokens: (layers, heads)."""
    norms = np.zeros((classifier.num_layers, classifier.num_heads))
    for number, kept in enumerate(classifier.config.kept_heads):
        attention = classifier.network.layers[number].heads
        if attention is None:
            continue
        size, width = attention.head_size, len(kept) * attention.head_size
        value = attention.query_key_value.weight[2 * width :].float()
        output = attention.output.weight.float()
        for index, head in enumerate(kept):
            rows = head_rows([index], size)
            norms[number, head] = float((output[:, rows] @ value[rows]).norm())
    return norms


def unit_norms(classifier: Classifier) -> list[Floats]:
    """Return ‖down‖²·‖up‖² of each unit of each layer."""
    weights = [
        (layer.units.up.weight.float(), layer.units.down.weight.float())
        for layer in classifier.network.layers
    ]
    return [(up.square().sum(1) * down.square().sum(0)).double().numpy(force=True) for up, down in weights]


def _ascending(importance: Floats, held: Sequence[Head]) -> Heads:
    return tuple(sorted(held, key=lambda head: float(importance[head])))
