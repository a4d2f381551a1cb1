"""The loss of a shorter query: how far its relevance judgments are from those of the whole query."""

import numpy as np
from numpy.typing import NDArray

from models.classifier import Scores, sigmoid
from models.errors import ModelError

Floats = NDArray[np.float64]

MAX_LOSS = 0.1
"""The bound on the loss if a request gives neither a bound nor a number of words."""


def loss_against(whole: Floats, judged: Floats) -> float:
    """Return the loss of a query. whole, judged: (titles, grades), judged under the whole query and under it.

    It is the mean Jensen–Shannon distance of the titles' distributions: 0 if every title is judged as under
    the whole query, 1 if no title keeps any of its probable grades.
    """
    return float(jensen_shannon(whole, judged).mean())


def distributions(scores: Scores) -> Floats:
    """Return the distribution over the grades of n pairs, (n, grades).

    A one-label model has two grades, with the probabilities 1 − p and p for its sigmoid p.
    """
    values = scores.probabilities.astype(np.float64)
    if not np.isfinite(values).all():
        raise ModelError("the model gave no finite score")
    if values.shape[1] == 1:
        return np.stack([sigmoid(-scores.raw_score), sigmoid(scores.raw_score)], axis=1)
    return values


def jensen_shannon(left: NDArray[np.floating], right: NDArray[np.floating]) -> Floats:
    """Return the Jensen–Shannon distance (base 2, from 0 to 1) of distributions in the last axis.

    In numpy alone: a replica needs it, and importing scipy takes most of a second.
    """
    middle = (left + right) / 2
    safe = np.where(middle > 0, middle, 1)
    ratios = [np.where(part > 0, part / safe, 1) for part in (left, right)]
    divergence = (left * np.log2(ratios[0]) + right * np.log2(ratios[1])).sum(-1) / 2
    return np.asarray(np.sqrt(np.clip(divergence, 0, 1)))
