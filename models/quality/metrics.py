"""The metrics by which a kind of model is judged, and their names in texts. `graded` and `rankings` compute
them."""

from dataclasses import dataclass


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
