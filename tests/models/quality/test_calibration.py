"""Calibration errors that see every grade, beside those of a perfect model."""

import numpy as np
import pytest

from models.quality.calibration import as_json, floor
from models.quality.evaluation import Evaluation


def drawn(rng: np.random.Generator, probabilities: np.ndarray) -> np.ndarray:
    """Grades that come true as the probabilities say."""
    return np.array([rng.choice(len(row), p=row) for row in probabilities])


def test_a_perfect_model_has_the_error_of_the_floor() -> None:
    """The truth is drawn from the probabilities, which no model can know better."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([0.7] * 5, 400)
    least = floor(probabilities)
    found = [
        Evaluation([f"q{i}" for i in range(400)], drawn(rng, probabilities).tolist(), probabilities).metrics()
        for _ in range(40)
    ]
    for name in ("ece", "classwise_ece"):
        errors = [metrics[name] for metrics in found]
        assert least[name] == pytest.approx(np.mean(errors), abs=4 * np.std(errors) / np.sqrt(40))
        assert least[name] > 0.01


def test_a_grade_at_half_of_its_share_is_seen() -> None:
    """As on the shipped model: `exact` is half of the pairs and gets a quarter of the probability, and the
    likeliest grade, mostly another one, is as sure as it is right."""
    rng = np.random.default_rng(1)
    n = 3000
    truth = rng.choice(5, n, p=[0.1, 0.1, 0.2, 0.12, 0.48])
    probabilities = np.tile([0.19, 0.19, 0.2, 0.19, 0.23], (n, 1))
    probabilities[:, 2], probabilities[:, 4] = 0.23, 0.2
    metrics = Evaluation([f"q{i}" for i in range(n)], truth.tolist(), probabilities).metrics()
    found = as_json(truth, probabilities)

    assert metrics["ece"] < 0.05
    assert metrics["classwise_ece"] > 0.1 > 10 * found["floor"]["classwise_ece"]
    assert found["shares"][4] - found["mean_probabilities"][4] > 0.25
    (expected,), (true,) = (found["by_expected_grade"][name] for name in ("expected", "true"))
    assert true - expected == pytest.approx(truth.mean() - float(probabilities[0] @ np.arange(5)))
