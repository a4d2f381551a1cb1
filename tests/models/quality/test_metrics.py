"""Derivatives of the metrics: they carry every standard error."""

from __future__ import annotations

import numpy as np
import pytest

from models.quality import metrics


@pytest.mark.parametrize("seed", range(5))
def test_each_derivative_is_what_a_small_step_shows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sums = np.concatenate([rng.random(25) * 40, [7.5, 11.0]])
    step = 1e-5 * np.eye(27)

    values, slopes = metrics.values_and_gradients(sums, 5)

    shown = (metrics.values(sums + step, 5) - metrics.values(sums - step, 5)).T / 2e-5
    assert slopes == pytest.approx(shown, abs=1e-7)
    assert values == pytest.approx(metrics.values(sums, 5))


def test_a_grade_that_never_occurs_gives_numbers_not_nan() -> None:
    sums = np.zeros(27)
    sums[[0, 1, 6]] = (3, 1, 4)  # truths 0 and 1 only
    values, slopes = metrics.values_and_gradients(sums, 5)
    assert np.isfinite(values[:3]).all()
    assert np.isfinite(slopes[:3]).all()
    assert np.isnan(values[3])  # nothing to rank
