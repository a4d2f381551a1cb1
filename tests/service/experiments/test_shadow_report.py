"""One request under two arms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import ndcg_score

from service.experiments.shadow_report import paired


def test_differences_are_those_of_scipy_and_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    control = rng.random(25).round(1)  # with ties
    arm = control + rng.normal(0, 0.2, 25)
    grades = rng.integers(0, 5, 25)
    found = paired(control, arm, grades.tolist())
    assert found["mean_delta"] == pytest.approx((arm - control).mean())
    assert found["mean_abs_delta"] == pytest.approx(np.abs(arm - control).mean())
    assert found["pairs"] == sum(found["bins"].values()) == 25
    assert found["rank_correlation"] == pytest.approx(stats.spearmanr(control, arm).statistic)
    gains = (2.0**grades - 1)[None]
    without_ties = paired(np.arange(25.0), arm, grades.tolist())
    before, after = (ndcg_score(gains, scores[None], k=10) for scores in (np.arange(25.0), arm))
    assert without_ties["ndcg_delta"] == pytest.approx(after - before)


def test_the_overlap_is_of_the_ten_best() -> None:
    control = np.arange(20.0)
    for arm, overlap in ((control, 1.0), (-control, 0.0), (np.roll(control, 3), 0.7)):
        assert paired(control, arm)["top10_overlap"] == pytest.approx(overlap)
    assert paired(control[:10], control[:10])["top10_overlap"] is None


def test_what_cannot_be_said_is_none() -> None:
    one = paired(np.array([0.3]), np.array([0.5]), [2])
    assert one["mean_delta"] == pytest.approx(0.2)
    assert (one["rank_correlation"], one["ndcg_delta"]) == (None, None)
    assert paired(np.array([0.3, 0.3]), np.array([0.2, 0.5]))["rank_correlation"] is None
