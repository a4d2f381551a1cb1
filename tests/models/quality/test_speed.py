"""Speeds are claimed with an interval that holds the truth as often as it says."""

import numpy as np
import pytest
from scipy.stats import binom

from headroom.models.quality.speed import MIN_ROUNDS, speedup


@pytest.mark.parametrize("rounds", [MIN_ROUNDS, 12])
def test_the_interval_holds_the_true_median_in_95_percent_of_measurements(rounds: int) -> None:
    """Now and then another program takes the processor, so that the spread is far from normal."""
    rng = np.random.default_rng(rounds)
    held = 0
    for _ in range(1000):
        before, after = np.exp(0.05 * rng.standard_normal((2, rounds)) + (rng.random((2, rounds)) < 0.2))
        interval = speedup(1.25 * before, after)
        assert interval.low <= interval.value <= interval.high
        held += interval.low <= 1.25 <= interval.high
    assert held >= binom.ppf(0.001, 1000, 0.95)


def test_with_few_rounds_nothing_is_claimed() -> None:
    rounds = np.arange(1.0, MIN_ROUNDS)
    interval = speedup(2 * rounds, rounds)
    assert interval.value == 2
    assert not interval.is_above(1)
    assert not interval.is_below(3)
