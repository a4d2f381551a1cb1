"""Calibration that sees every grade."""

import numpy as np

from models.quality.calibration import as_json
from models.quality.evaluation import Evaluation


def test_a_grade_at_half_of_its_share_is_seen() -> None:
    """As on the shipped model once: `exact` is half of the pairs and gets a quarter of the probability, and
    the likeliest grade, mostly another one, is as sure as it is right."""
    rng = np.random.default_rng(1)
    n = 3000
    truth = rng.choice(5, n, p=[0.1, 0.1, 0.2, 0.12, 0.48])
    probabilities = np.tile([0.19, 0.19, 0.2, 0.19, 0.23], (n, 1))
    probabilities[:, 2], probabilities[:, 4] = 0.23, 0.2
    metrics = Evaluation([f"q{i}" for i in range(n)], truth.tolist(), probabilities).metrics()
    found = as_json(truth, probabilities)

    assert metrics["ece"] < 0.05
    assert found["shares"][4] - found["mean_probabilities"][4] > 0.25
