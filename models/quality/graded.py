"""Metrics of graded predictions on judged pairs: beside the order, how often the grade is right, and how far
probabilities are from shares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from headroom.models.arrays import Bools, Floats, Ints
from headroom.models.files import Json
from headroom.models.quality.evaluation import SMALLEST_PROBABILITY, Evaluation, positive
from headroom.models.quality.labelled import LabelledPair
from headroom.models.quality.metrics import GRADED, Measures
from headroom.models.scores import median_grade

if TYPE_CHECKING:
    from headroom.models.scores import Scores

_BINS = 15
"""How many bins of equal width the calibration error sorts the likeliest grades' probabilities into."""


class GradedEvaluation(Evaluation):
    """Graded predictions and the true grades.

    pairs: with their true grades. ranking: (n,), what orders the pairs of a query.
    relevant: the lowest grade that counts as relevant; None: the highest grade alone does.
    probabilities: (n, grades), rows sum to 1.
    """

    measures: ClassVar[Measures] = GRADED

    def __init__(
        self,
        pairs: Sequence[LabelledPair],
        probabilities: NDArray[np.floating],
        ranking: NDArray[np.floating],
        relevant: int | None = None,
    ) -> None:
        self.probabilities: Floats = np.asarray(probabilities, np.float64)
        self.grades = self.probabilities.shape[1]
        self.expected: Floats = self.probabilities @ np.arange(self.grades)
        self.predicted: Ints = median_grade(self.probabilities)
        super().__init__(pairs, ranking, self.grades - 1 if relevant is None else relevant)

    def resampled(self, counts: Floats) -> dict[str, Floats]:
        """Return the metrics of resamples that hold cluster c counts[r, c] times: (resamples,) each.

        accuracy; macro_f1 over the grades that occur; qwk (quadratic weighted kappa); those of the ranking;
        ece, the expected calibration error (Guo et al. 2017).
        """
        graded = self.of_sums(counts)
        graded |= super().resampled(counts)
        is_right = self.probabilities.argmax(1) == self.truth
        graded["ece"] = self._calibration_error(self.probabilities.max(1), is_right, counts)
        return graded

    def _calibration_error(self, probabilities: Floats, happened: Bools, counts: Floats) -> Floats:
        """Return the mean distance of probabilities from shares, over bins, on resamples: (resamples,).

        probabilities: (n,) of something in each pair. happened: (n,) whether it did.
        """
        bins = np.minimum((probabilities * _BINS).astype(np.int64), _BINS - 1)
        gaps = np.zeros((self.clusters, _BINS))
        np.add.at(gaps, (self._cluster_of, bins), probabilities - happened)
        return np.asarray(np.abs(counts @ gaps).sum(1) / self._pairs(counts))

    def _pairs(self, counts: Floats) -> Floats:
        """Return how many pairs each resample has, nan for none: (resamples,)."""
        return positive(counts @ np.bincount(self._cluster_of, minlength=self.clusters))

    def values(self, sums: Floats) -> Floats:
        """Return the metrics of `measures` of added-up `sums`: (..., grades² + 2) → (..., 4)."""
        return np.concatenate(
            [of_counted_grades(sums[..., :-2], self.grades), super().values(sums[..., -2:])], -1
        )

    @cached_property
    def sums(self) -> Floats:
        """Return (clusters, grades² + 2): counts of (truth, prediction); NDCG@10; the queries that have
        one."""
        confusion = np.zeros((self.clusters, self.grades**2))
        np.add.at(confusion, (self._cluster_of, self.truth * self.grades + self.predicted), 1)
        return np.concatenate([confusion, self._sum_and_count("ndcg10")], axis=1)

    def reliability(self, counts: Floats) -> dict[str, Floats]:
        """Return how far probabilities are from shares on resamples: (resamples,) each.

        classwise_ece: the calibration error of each grade's probability, averaged over the grades (Kull et
        al. 2019, https://arxiv.org/abs/1910.12656); of two grades, that of P(relevant). log_loss: the mean
        negative log-likelihood, probabilities at least SMALLEST_PROBABILITY.
        """
        errors = [
            self._calibration_error(self.probabilities[:, grade], self.truth == grade, counts)
            for grade in range(self.grades)
        ]
        of_truth = self.probabilities[np.arange(len(self.truth)), self.truth]
        losses = -np.log(np.maximum(of_truth, SMALLEST_PROBABILITY))
        of_cluster = np.bincount(self._cluster_of, losses, self.clusters)
        return {"classwise_ece": np.mean(errors, 0), "log_loss": counts @ of_cluster / self._pairs(counts)}

    def reliability_bins(self, grade: int, bins: int = 10) -> list[Json]:
        """Return the reliability diagram of a grade's probability: each bin with pairs, its ends, the number
        of pairs, their mean probability and the share that has the grade."""
        probabilities = self.probabilities[:, grade]
        bin_of = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
        table: list[Json] = []
        for index in np.unique(bin_of).tolist():
            rows = bin_of == index
            table.append(
                {
                    "low": index / bins,
                    "high": (index + 1) / bins,
                    "pairs": int(rows.sum()),
                    "probability": float(probabilities[rows].mean()),
                    "share": float((self.truth[rows] == grade).mean()),
                }
            )
        return table

    @property
    def confusion(self) -> Ints:
        """Return how many pairs of each grade (row) got each grade (column): (grades, grades)."""
        return np.asarray(self.sums[:, :-2].sum(0).reshape(self.grades, self.grades), np.int64)

    @property
    def calibration(self) -> dict[str, list[float]]:
        """Return each grade's mean probability and its share of the pairs.

        The expected calibration error looks at the likeliest grade alone: a model may look well there and
        give a grade half of its share.
        """
        shares = np.bincount(self.truth, minlength=self.grades) / len(self.truth)
        return {"mean_probabilities": self.probabilities.mean(0).tolist(), "shares": shares.tolist()}


def of_counted_grades(sums: Floats, grades: int) -> Floats:
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


def evaluation_of(pairs: Sequence[LabelledPair], scores: Scores, relevant: int | None = None) -> Evaluation:
    """Return the evaluation of a model's scores of the pairs: of grades, or of one score's order alone.

    relevant: the lowest grade that counts as relevant; None for the highest grade, or of one score for 1.
    """
    if scores.probabilities.shape[1] == 1:
        return Evaluation(pairs, scores.raw_score, 1 if relevant is None else relevant)
    return GradedEvaluation(pairs, scores.probabilities, scores.raw_score, relevant)
