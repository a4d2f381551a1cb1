"""Fits probabilities to judged pairs, and measures how reliable they are.

One label: P(relevant) = σ(logit / temperature + bias), a rising map, so it keeps the order of all titles
(Platt 1999, "Probabilistic Outputs for Support Vector Machines"). Grades: softmax(logits / temperature +
bias), with one bias per grade (Guo et al. 2017, https://arxiv.org/abs/1706.04599, "vector scaling" with one
scale). Isotonic regression is left out: its steps would give titles of different logits one score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit, log_softmax

from headroom.models.arrays import Bools, Floats, Ints
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.quality.bootstrap import MIN_QUERIES, resample
from headroom.models.quality.evaluation import changes_of, intervals_of
from headroom.models.quality.graded import GradedEvaluation
from headroom.models.quality.labelled import LabelledPair, digest, query_key
from headroom.models.quality.noninferiority import RESAMPLES
from headroom.models.scores import Scores

FOLDS = 5
"""The queries are cut into this many folds; each is judged with what the other folds choose."""

MAX_LOSS = 0.02
"""NDCG@10 may fall by this much on queries that had no part in the fit; else the biases are left out."""

LARGEST = 1000.0
"""The largest temperature, in standard deviations of the logits; its inverse is the smallest."""

_RANGE = (-math.log(LARGEST), math.log(LARGEST))

RIDGE = 1e-3
"""Weight of the squared biases beside the mean log loss: a grade without pairs has a finite bias."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The calibrated logits are logits / temperature + bias. bias: (labels,), least relevant first."""

    temperature: float
    bias: Floats

    def of(self, logits: Floats) -> Floats:
        """Return the calibrated logits, (n, labels)."""
        return np.asarray(logits / self.temperature + self.bias)


def fit_one_label(logits: Floats, relevant: Ints) -> Calibration:
    """Return Platt's map of logits (n, 1) by likelihood. relevant: (n,), 0 or 1, both at least once.

    Its targets are Platt's, a little inside of 0 and 1, so that separable pairs have a finite map.
    Raises ModelError if relevant pairs do not have higher logits than the others.
    """
    x = logits[:, 0].astype(np.float64)
    middle = float(x.mean())
    spread = float(x.std()) or 1.0
    x = (x - middle) / spread
    positives = int(relevant.sum())
    negatives = len(relevant) - positives
    targets = np.where(relevant == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def loss(parameters: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient. parameters: the temperature's logarithm, and the biases."""
        slope = np.exp(parameters[0])
        z = slope * x + parameters[1]
        slopes = expit(z) - targets
        value = -float(np.mean(targets * log_expit(z) + (1 - targets) * log_expit(-z)))
        return value, np.array([np.mean(slopes * x) * slope, slopes.mean()])

    if x @ targets <= 0:  # the likeliest slope is not above 0
        raise ModelError("the relevant pairs do not have higher scores than the others: nothing to calibrate")
    best = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[_RANGE, (None, None)]).x
    temperature = spread / float(np.exp(best[0]))
    return Calibration(temperature, np.array([best[1] - middle / temperature]))


def fit_grades(
    logits: Floats, grades: Ints, weights: Floats | None = None, *, with_bias: bool = True
) -> Calibration:
    """Return the map of logits, (n, labels), by likelihood. grades: (n,).

    weights: of the pairs, (n,), whose sum is 1; None: equal ones. with_bias: False fits the temperature
    alone, which cannot move probability from one grade to another. The biases' sum is 0.
    """
    rows = np.arange(len(grades))
    if weights is None:
        weights = np.full(len(grades), 1 / len(grades))
    spread = float(logits.std()) or 1.0
    x = logits.astype(np.float64) / spread

    def loss(parameters: Floats) -> tuple[float, Floats]:
        """Return the loss and its gradient. parameters: the temperature's logarithm, and the biases."""
        scaled = x * np.exp(parameters[0])
        bias = parameters[1:]
        logs = log_softmax(scaled + bias, axis=1)
        slopes = np.exp(logs)
        slopes[rows, grades] -= 1
        slopes *= weights[:, None]
        of_bias = slopes.sum(0) + 2 * RIDGE * bias if with_bias else np.zeros(len(bias))
        value = float(-logs[rows, grades] @ weights + RIDGE * bias @ bias)
        return value, np.array([(slopes * scaled).sum(), *of_bias])

    start = np.zeros(1 + logits.shape[1])
    bounds = [_RANGE] + [(None, None)] * logits.shape[1]
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return Calibration(spread / float(np.exp(best[0])), best[1:] - best[1:].mean())


Fit = Callable[[Floats, Ints], Calibration]
"""Returns the calibration of logits, (n, labels), and grades, (n,); of one label, 1 is relevant."""

METHODS: dict[str, Fit] = {
    "Platt": fit_one_label,
    "temperature and biases": fit_grades,
    "temperature": partial(fit_grades, with_bias=False),
}
"""The ways to fit a calibration, as reports name them."""


def folds_of(pairs: Sequence[LabelledPair], folds: int) -> Ints:
    """Return the fold of each pair, (n,), from 0 to folds − 1; all pairs of a query are in one fold."""
    queries = sorted({query_key(pair.query) for pair in pairs}, key=digest)
    fold_of = {query: index % folds for index, query in enumerate(queries)}
    return np.array([fold_of[query_key(pair.query)] for pair in pairs])


def judged_folds(pairs: Sequence[LabelledPair], folds: int = FOLDS) -> Iterator[Bools]:
    """Yield the pairs that each fold judges by what the others choose, (n,), unless these are none or all."""
    fold_of = folds_of(pairs, folds)
    for fold in range(folds):
        judged = fold_of == fold
        if judged.any() and not judged.all():
            yield judged


def check_pairs(pairs: Sequence[LabelledPair], name: str) -> None:
    """Raise ModelError if the pairs are too few to fit a calibration and to judge it on other queries.

    name: of their file.
    """
    queries = len({query_key(pair.query) for pair in pairs})
    if queries < MIN_QUERIES:
        raise ModelError(f"{name}: too few queries, {queries}; at least {MIN_QUERIES} are needed")
    grades = {pair.grade for pair in pairs}
    if len(grades) == 1:
        raise ModelError(f"{name}: every pair has grade {grades.pop()}; pairs of several grades are needed")
    for judged in judged_folds(pairs):
        left = {pairs[row].grade for row in np.flatnonzero(~judged).tolist()}
        if len(left) == 1:
            raise ModelError(
                f"{name}: nearly every query has pairs of grade {left.pop()} alone; judge more queries"
            )


Judge = Callable[[Floats, Sequence[LabelledPair]], Calibration]
"""Returns the calibration that some pairs' logits, (n, labels), choose."""


def cross_fitted(choose: Judge, logits: Floats, pairs: Sequence[LabelledPair]) -> Floats:
    """Return the calibrated logits of the pairs, (n, labels), each by queries of the other folds."""
    calibrated = np.array(logits, np.float64)
    for judged in judged_folds(pairs):
        others = [pairs[row] for row in np.flatnonzero(~judged).tolist()]
        calibrated[judged] = choose(logits[~judged], others).of(logits[judged])
    return calibrated


def fitted(method: str, logits: Floats, pairs: Sequence[LabelledPair]) -> Calibration:
    """Return the calibration of some pairs by one of METHODS."""
    return METHODS[method](logits, np.array([pair.grade for pair in pairs]))


def method_for(logits: Floats, pairs: Sequence[LabelledPair], served: Calibration) -> str:
    """Return the method for a model by some pairs: without biases if with them NDCG@10 falls by more than
    MAX_LOSS on queries that had no part in the fit. served: the model's present calibration."""
    if logits.shape[1] == 1:
        return "Platt"
    method = "temperature and biases"
    before = calibrated_evaluation(served.of(logits), pairs)
    after = calibrated_evaluation(cross_fitted(partial(fitted, method), logits, pairs), pairs)
    has_lost = before.metrics()["ndcg10"] - after.metrics()["ndcg10"] > MAX_LOSS
    return "temperature" if has_lost else method


@dataclass(frozen=True, slots=True, eq=False)
class FittedCalibration:
    """A calibration, fitted to all pairs, and what the same way of fitting does for other queries.

    method: of METHODS. before, after: the pairs' evaluation as the model serves them, and under calibrations
    whose method and numbers other queries chose.
    """

    method: str
    calibration: Calibration
    before: GradedEvaluation
    after: GradedEvaluation


def calibrate(
    logits: Floats, pairs: Sequence[LabelledPair], served: Calibration, name: str
) -> FittedCalibration:
    """Calibrate a model. Raises ModelError if the pairs do not allow it, or if logits are not finite.

    logits: (n, labels), as the network computes them. served: the model's present calibration. name: of the
    pairs' file.
    """
    check_pairs(pairs, name)
    row = int(np.argmin(np.isfinite(logits).all(1)))
    if not np.isfinite(logits[row]).all():
        raise ModelError(f"the model's logits of the title {pairs[row].title!r} are not finite numbers")

    def choose(logits: Floats, pairs: Sequence[LabelledPair]) -> Calibration:
        """Return the calibration of some pairs, by the method that these choose."""
        return fitted(method_for(logits, pairs, served), logits, pairs)

    before = calibrated_evaluation(served.of(logits), pairs)
    after = calibrated_evaluation(cross_fitted(choose, logits, pairs), pairs)
    method = method_for(logits, pairs, served)
    return FittedCalibration(method, fitted(method, logits, pairs), before, after)


def calibrated_evaluation(logits: Floats, pairs: Sequence[LabelledPair]) -> GradedEvaluation:
    """Return the evaluation of calibrated logits, (n, labels); one label has the grades 0 and 1."""
    if logits.shape[1] == 1:
        relevance = expit(logits[:, 0])
        return GradedEvaluation(pairs, np.stack([1 - relevance, relevance], axis=1), logits[:, 0])
    ranking = Scores.from_logits(logits).raw_score
    return GradedEvaluation(pairs, np.exp(log_softmax(logits, axis=1)), ranking)


def reliability(
    before: GradedEvaluation, after: GradedEvaluation, *, is_graded: bool, resamples: int = RESAMPLES
) -> Json:
    """Return each metric before and after, and its paired change, an Interval each."""
    counts = resample(after.clusters, resamples, 0)
    ranks = ("ndcg10",) if is_graded else ()

    def measured(evaluation: GradedEvaluation) -> Callable[[Floats], dict[str, Floats]]:
        def statistics(drawn: Floats) -> dict[str, Floats]:
            of_sums = evaluation.of_sums(drawn)
            return evaluation.reliability(drawn) | {rank: of_sums[rank] for rank in ranks}

        return statistics

    first = before.draws(counts, measured(before))
    last = after.draws(counts, measured(after))
    change = changes_of(first, last, counts)
    of_before = intervals_of(first, counts)
    of_after = intervals_of(last, counts)
    return {
        name: {"before": of_before[name], "after": of_after[name], "change": change[name]} for name in change
    }
