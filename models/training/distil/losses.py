"""The losses of distillation, on calibrated logits.

Margins: within a query, differences of the student's scores come near the teacher's (Hofstätter et al. 2020,
https://arxiv.org/abs/2010.02666). Lists: so do the softmaxes of scores over a query's titles (Cao et al.
2007, "Learning to Rank: From Pairwise Approach to Listwise Approach"). Single pairs: so do the probabilities
(Hinton et al. 2015, https://arxiv.org/abs/1503.02531).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.checkpoint.config import ModelConfig

_OFF = -1e4
"""A score of what is not in a list: its share of the softmax is 0."""


def calibrated(logits: Tensor, config: ModelConfig) -> Tensor:
    """Return calibrated logits, least relevant label first: (B, labels) float32. logits: labels as in the
    checkpoint."""
    ordered = logits.float()[:, list(config.label_order)]
    return ordered / config.temperature + ordered.new_tensor(config.bias)


def raw_scores(logits: Tensor) -> Tensor:
    """Return the log-odds of the score, (B,), as `Scores.raw_score`. logits: calibrated, (B, labels)."""
    labels = logits.shape[1]
    if labels == 1:
        return logits[:, 0]
    above = torch.arange(1, labels, dtype=logits.dtype, device=logits.device).log()
    relevant = torch.logsumexp(logits[:, 1:] + above, 1)
    return relevant - torch.logsumexp(logits[:, :-1] + above.flip(0), 1)


def margin_mse(scores: Tensor, wanted: Tensor, lists: Tensor) -> Tensor:
    """Return the mean squared error of the differences of two titles' scores, averaged over the lists.

    scores, wanted: (B,). lists: (lists, longest) int64, the rows of each query's titles, at least two; −1
    fills them up. Over all n·(n − 1)/2 differences the mean is 2/(n − 1) times the squared distance of the
    errors from their mean.
    """
    inside = lists >= 0
    errors = (scores - wanted)[lists.clamp(min=0)] * inside
    count = inside.sum(1)
    distance = (errors - errors.sum(1, keepdim=True) / count[:, None]) * inside
    return (2 * distance.square().sum(1) / (count - 1)).mean()


def listwise(scores: Tensor, wanted: Tensor, lists: Tensor) -> Tensor:
    """Return the Kullback–Leibler divergence of the softmax over a list's scores from that of the wanted
    ones, averaged over the lists. Arguments as in `margin_mse`."""
    outside = lists < 0
    rows = lists.clamp(min=0)
    ours = F.log_softmax(scores[rows].masked_fill(outside, _OFF), 1)
    theirs = F.log_softmax(wanted[rows].masked_fill(outside, _OFF), 1)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)
