"""Batches in which the pairs of one query stay together, and the loss that ranks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.training.loop import Batch

SHARPNESS = 2.0
"""How fast the ranking loss grows with a wrong order."""


@dataclass(frozen=True, slots=True)
class GroupedBatch(Batch):
    """A batch whose pairs of one query are ranked.

    groups: (B,) int64, the same number for pairs of one query.
    taught: (B,) bool, pairs whose grades are taught.
    """

    groups: Tensor
    taught: Tensor

    def split(
        self, spans: Sequence[Sequence[int]], *, batch_tokens: int, rng: np.random.Generator
    ) -> list[GroupedBatch]:
        """Return batches of rows of similar length in a random order.

        spans: rows that stay in one batch. batch_tokens: at most, unless one span has more.
        """
        lengths = [max(len(self.pairs[row]) for row in span) for span in spans]
        batches = []
        for chosen in grouped_spans(lengths, [len(span) for span in spans], batch_tokens=batch_tokens):
            rows = [row for index in chosen for row in spans[index]]
            pairs = [self.pairs[row] for row in rows]
            batches.append(
                GroupedBatch(
                    pairs, self.labels[rows], self.weights[rows], self.groups[rows], self.taught[rows]
                )
            )
        return [batches[index] for index in rng.permutation(len(batches))]


def grouped_spans(lengths: Sequence[int], sizes: Sequence[int], *, batch_tokens: int) -> list[list[int]]:
    """Group spans of similar length, so that a group's padded size is at most `batch_tokens`.

    lengths: of each span's longest sequence. sizes: how many sequences each span has.
    Returns the indices of each group. A span longer than `batch_tokens` is a group of its own.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[list[int]] = []
    sequences = 0
    for index in order:  # ascending, so the newest is the longest of its group
        if groups and lengths[index] * (sequences + sizes[index]) <= batch_tokens:
            groups[-1].append(index)
            sequences += sizes[index]
        else:
            groups.append([index])
            sequences = sizes[index]
    return groups


def ranking_loss(logits: Tensor, targets: Tensor, groups: Tensor) -> Tensor:
    """Return the logistic loss of each two pairs of a group whose grades differ, weighted by the difference.

    RankNet (Burges et al. 2005) on the expected grades.
    targets: (B, grades); groups: (B,). 0 if no two pairs of a group differ.
    """
    grades = torch.arange(logits.shape[-1], dtype=torch.float32, device=logits.device)
    predicted = logits.float().softmax(-1) @ grades  # (B,)
    wanted = targets @ grades  # (B,)
    better_by = (wanted[:, None] - wanted).clamp(min=0) * (groups[:, None] == groups)  # (B, B)
    losses = F.softplus(-SHARPNESS * (predicted[:, None] - predicted))
    return (better_by * losses).sum() / better_by.sum().clamp(min=1e-6)
