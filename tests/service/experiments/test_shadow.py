"""One request under two arms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import ndcg_score

from service.experiments.shadow import paired


def test_differences_are_those_of_scipy_and_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    control = rng.random(25).round(1)  # with ties
    arm = control + rng.normal(0, 0.2, 25)
    grades = rng.integers(0, 5, 25)
    found = paired(control, arm, grades.tolist())
    assert found.mean_delta == pytest.approx((arm - control).mean())
    assert np.sort(found.abs_deltas) == pytest.approx(np.sort(np.abs(arm - control)))
    assert found.rank_correlation == pytest.approx(stats.spearmanr(control, arm).statistic)
    gains = (2.0**grades - 1)[None]
    assert found.ndcg_arm == pytest.approx(ndcg_score(gains, arm[None], k=10))


def test_the_overlap_is_of_the_ten_best() -> None:
    control = np.arange(20.0)
    assert paired(control, control).top10_overlap == 1.0
    assert paired(control, -control).top10_overlap == 0.0
    assert paired(control, np.roll(control, 3)).top10_overlap == pytest.approx(0.7)
    assert paired(control[:10], control[:10]).top10_overlap is None


def test_what_cannot_be_said_is_none() -> None:
    one = paired(np.array([0.3]), np.array([0.5]), [2])
    assert one.mean_delta == pytest.approx(0.2)
    assert one.rank_correlation is None
    assert one.ndcg_control is None
    flat = paired(np.array([0.3, 0.3]), np.array([0.2, 0.5]))
    assert flat.rank_correlation is None
