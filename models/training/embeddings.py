"""Computes word-piece vectors from co-occurrence counts, in a minute instead of an hour of pre-training.

Positive pointwise mutual information with subsampled contexts, factored by a randomised SVD
(Levy and Goldberg 2014, "Neural Word Embedding as Implicit Matrix Factorization").
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def cooccurrence_vectors(
    lines: Sequence[Sequence[int]],
    *,
    vocab_size: int,
    dimensions: int,
    first_context: int,
    contexts: int = 4096,
    window: int = 8,
    seed: int = 0,
) -> Tensor:
    """Return unit vectors of all pieces, (vocab_size, dimensions) float32; unseen pieces get zeros.

    lines: token ids without special tokens. Pieces co-occur within `window` positions of a line, weighted by
    1/distance. Contexts are the `contexts` ids from `first_context` on: a WordPiece vocabulary lists
    letters first, then pieces by how early they were merged, so these are the frequent ones.
    """
    stream = np.concatenate([np.asarray([*line, *[-1] * window], dtype=np.int64) for line in lines])
    counts = torch.zeros(vocab_size * contexts)
    for distance in range(1, window + 1):
        left, right = stream[:-distance], stream[distance:]
        both = (left >= 0) & (right >= 0)
        for word, context in ((left[both], right[both]), (right[both], left[both])):
            counts += _count(word, context - first_context, contexts, vocab_size) / distance
    table = counts.view(vocab_size, contexts)

    total = table.sum()
    by_word, by_context = table.sum(1, keepdim=True), table.sum(0, keepdim=True) ** 0.75
    by_context *= total / by_context.sum()
    information = torch.log(
        (table * total).div_(by_word * by_context).clamp_(min=1.0)
    )  # PPMI, 0 for unseen pairs
    torch.manual_seed(seed)
    left_vectors, values, _ = torch.svd_lowrank(torch.nan_to_num(information), q=dimensions, niter=3)
    return torch.nn.functional.normalize(left_vectors * values.sqrt(), dim=1)


def _count(word: NDArray[np.int64], context: NDArray[np.int64], contexts: int, vocab_size: int) -> Tensor:
    inside = (context >= 0) & (context < contexts)
    cells = torch.from_numpy(word[inside] * contexts + context[inside])
    return torch.bincount(cells, minlength=vocab_size * contexts).float()
