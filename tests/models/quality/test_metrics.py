"""Metrics of confusions that lack grades, and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, ndcg_score

from models.quality import metrics
from models.quality.evaluation import Evaluation


@pytest.mark.parametrize("seed", range(3))
def test_the_metrics_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, probabilities = rng.integers(0, 5, 60), rng.dirichlet(np.ones(5), 60)
    found = Evaluation([f"q{i // 6}" for i in range(60)], truth.tolist(), probabilities).metrics()
    predicted = probabilities.argmax(1)
    expected = probabilities @ np.arange(5)
    gains = [
        ndcg_score(2.0 ** truth[None, rows] - 1, expected[None, rows], k=10)
        for rows in np.arange(60).reshape(10, 6)
    ]
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro", labels=range(5)))
    assert found["qwk"] == pytest.approx(cohen_kappa_score(truth, predicted, weights="quadratic"))
    assert found["ndcg10"] == pytest.approx(np.mean(gains))


def test_a_grade_that_never_occurs_gives_numbers_not_nan() -> None:
    sums = np.zeros(27)
    sums[[0, 1, 6]] = (3, 1, 4)  # truths 0 and 1 only
    values = metrics.values(sums, 5)
    assert np.isfinite(values[:3]).all()
    assert np.isnan(values[3])  # nothing to rank
