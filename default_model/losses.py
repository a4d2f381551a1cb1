"""The losses of recipes: of grades, of the order within a query, and of what a contradiction costs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from default_model.grouped_batches import GroupedBatch
from headroom.models.training.distil.losses import raw_scores

DISTANCE_WEIGHT = 0.3
"""Of the expected grade's squared error beside the cross-entropy."""

SAME_GRADE = 0.3
"""Taught grades that differ by less are not told apart by `margin_loss`."""

MARGIN = 0.8
"""The share of the difference of two taught grades that the expected grades must have."""


def raw_ranking_loss(logits: Tensor, targets: Tensor, groups: Tensor) -> Tensor:
    """Return the logistic loss of each two pairs of a group whose grades differ, weighted by the difference.

    RankNet (Burges et al. 2005) on the log-odds that the service ranks by. Expected grades would level off
    near the ends of the scale: two good titles could not be told apart.
    """
    grades = torch.arange(logits.shape[1], dtype=torch.float32)
    scores = raw_scores(logits)
    wanted = targets @ grades
    apart = (wanted[:, None] - wanted).clamp(min=0) * (groups[:, None] == groups)  # (B, B)
    losses = F.softplus(-(scores[:, None] - scores))
    return (apart * losses).sum() / apart.sum().clamp(min=1e-6)


def graded_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the ordinal loss as the mean over all pairs; those of weight 0 add nothing and take nothing.

    The mean over the weights alone would let few graded pairs in a batch of ranked ones decide the step.
    """
    logits = logits.float()
    likelihood = -(targets * F.log_softmax(logits, dim=-1)).sum(-1)  # (B,)
    grades = torch.arange(logits.shape[-1], dtype=logits.dtype)
    distance = (logits.softmax(-1) @ grades - targets @ grades) ** 2  # (B,)
    return ((likelihood + DISTANCE_WEIGHT * distance) * weights).mean()


def softened(batch: GroupedBatch, logits: Tensor, kept: float, held: float) -> tuple[Tensor, Tensor]:
    """Return the batch's targets, (B, grades), and their weights, (B,), with a teacher's probabilities.

    logits: the teacher's, (B, grades). kept: the share of its probabilities in the targets of graded pairs.
    held: the weight of pairs that are only ranked; their targets are the teacher's alone. Pairs whose grades
    are taught stay as they are.
    """
    only_ranked = batch.weights == 0
    shares = torch.where(only_ranked, 1.0, kept) * ~batch.taught  # (B,)
    opinion = logits.float().softmax(-1)
    targets = (1 - shares[:, None]) * batch.labels + shares[:, None] * opinion
    return targets, torch.where(only_ranked, held, batch.weights)


def margin_loss(logits: Tensor, batch: GroupedBatch) -> Tensor:
    """Return how far the expected grades of taught pairs of one query are from being as far apart as taught.

    The mean, over each two whose grades differ, of the squared part of the difference that is missing.
    """
    grades = torch.arange(logits.shape[1], dtype=torch.float32)
    expected = logits.float().softmax(-1) @ grades
    wanted = batch.labels @ grades
    apart = wanted[:, None] - wanted  # (B, B)
    together = (batch.groups[:, None] == batch.groups) & batch.taught[:, None] & batch.taught
    counted = (apart > SAME_GRADE) & together
    missing = (MARGIN * apart - (expected[:, None] - expected)).clamp(min=0) ** 2
    return (missing * counted).sum() / counted.sum().clamp(min=1)
