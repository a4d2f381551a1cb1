"""The interval of a speed-up covers what it says."""

from __future__ import annotations

import numpy as np

from models.study.search.structured.speed import median_interval


def test_order_statistics_cover_the_median_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    for rounds in (7, 9, 15):
        draws = np.sort(rng.standard_normal((2000, rounds)), axis=1)
        low, high, coverage = zip(*(median_interval(row) for row in draws), strict=True)
        covered = np.mean((np.array(low) < 0) & (np.array(high) > 0))
        assert abs(covered - coverage[0]) < 0.015
        assert coverage[0] >= 0.95


def test_too_few_rounds_give_all_of_their_range() -> None:
    low, high, coverage = median_interval(np.array([1.0, 2.0, 4.0]))
    assert (low, high) == (1.0, 4.0)
    assert coverage == 0.75
