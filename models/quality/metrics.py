"""The metrics by which a kind of model is judged, and those of counted grades; `rankings` has those of
order."""

from dataclasses import dataclass

import numpy as np

from headroom.models.arrays import Floats


@dataclass(frozen=True, slots=True)
class Measures:
    """The metrics by which a study judges a kind of model.

    names: all of them, in the order of reports. main: the one that orders heads and layers. tested: a model
    is shown to lose less than a margin if each of these falls by less, an intersection–union test, which
    needs no correction (Berger 1982). share: the one that is a share of right answers, whose relative change
    is told beside published ones of accuracy.
    """

    names: tuple[str, ...]
    main: str
    tested: tuple[str, ...]
    share: str


GRADED = Measures(
    names=("accuracy", "macro_f1", "qwk", "ndcg10"),
    main="qwk",
    tested=("accuracy", "qwk", "ndcg10"),
    share="accuracy",
)
"""Of a classifier with grades."""

RANKED = Measures(
    names=("ndcg10", "mrr10", "pair_accuracy", "query_spearman"),
    main="ndcg10",
    tested=("ndcg10",),
    share="pair_accuracy",
)
"""Of a cross-encoder with one score, which has an order and no grades."""

NAMES = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "qwk": "QWK",
    "ndcg10": "NDCG@10",
    "mrr10": "MRR@10",
    "map": "MAP",
    "recall10": "recall@10",
    "pair_accuracy": "pair accuracy",
    "query_spearman": "Spearman within queries",
    "spearman": "Spearman",
    "ece": "calibration error",
}
"""The names of the metrics in texts."""


def values(sums: Floats, grades: int) -> Floats:
    """Return accuracy, macro-F1 and QWK of added-up counts: (..., grades²) → (..., 3).

    sums: how often each true grade met each predicted grade, truth first. macro-F1 is over the grades that
    occur; QWK is the quadratic weighted kappa (Cohen 1968): 1 is agreement, 0 chance, and 0 if only one grade
    occurs.
    """
    confusion = sums.reshape(*sums.shape[:-1], grades, grades)  # [truth, predicted]
    right = np.einsum("...ii->...i", confusion)  # einsum, because .sum is slow over short axes
    truth = np.einsum("...ij->...i", confusion)
    predicted = np.einsum("...ij->...j", confusion)
    total = np.einsum("...i->...", truth)
    accuracy = np.einsum("...i->...", right) / np.where(total > 0, total, np.nan)

    occurs = truth > 0
    f1 = 2 * right / np.maximum(truth + predicted, 1)  # 0 for a grade that does not occur
    macro_f1 = np.einsum("...i->...", f1) / np.maximum(occurs.sum(-1), 1)

    distance = np.square(np.subtract.outer(np.arange(grades), np.arange(grades))).astype(np.float64)
    observed = np.einsum("...ij,ij->...", confusion, distance)
    chance = np.einsum("...i,...i->...", truth @ distance, predicted) / np.maximum(total, 1)
    qwk = np.where(chance > 0, 1 - observed / np.where(chance > 0, chance, 1), 0)
    return np.stack([accuracy, macro_f1, qwk], -1)
