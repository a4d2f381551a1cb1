"""One request under two arms, and what many of them say together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import ndcg_score

from headroom.service.experiments.estimates import Boundary, Floats
from headroom.service.experiments.shadow_report import paired_differences, shadow_reports
from headroom.service.experiments.store import Store
from tests.service.experiments.making import shadowed


def differences(control: Floats, arm: Floats, grades: list[int] | None = None) -> dict[str, Any]:
    """The differences of scores that also rank the titles."""
    return paired_differences(control, arm, grades, (control, arm))


def test_differences_are_those_of_scipy_and_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    control = rng.random(25).round(1)  # with ties
    arm = control + rng.normal(0, 0.2, 25)
    grades = rng.integers(0, 5, 25)
    found = differences(control, arm, grades.tolist())
    assert found["mean_delta"] == pytest.approx((arm - control).mean())
    assert found["mean_abs_delta"] == pytest.approx(np.abs(arm - control).mean())
    assert found["rank_correlation"] == pytest.approx(stats.spearmanr(control, arm).statistic)
    gains = (2.0**grades - 1)[None]
    without_ties = differences(np.arange(25.0), arm, grades.tolist())
    before, after = (ndcg_score(gains, scores[None], k=10) for scores in (np.arange(25.0), arm))
    assert without_ties["ndcg_delta"] == pytest.approx(after - before)


def test_the_overlap_is_of_the_ten_best() -> None:
    control = np.arange(20.0)
    for arm, overlap in ((control, 1.0), (-control, 0.0), (np.roll(control, 3), 0.7)):
        assert differences(control, arm)["top10_overlap"] == pytest.approx(overlap)
    assert differences(control[:10], control[:10])["top10_overlap"] is None


def test_what_cannot_be_said_is_none() -> None:
    one = differences(np.array([0.3]), np.array([0.5]), [2])
    assert one["mean_delta"] == pytest.approx(0.2)
    assert (one["rank_correlation"], one["ndcg_delta"]) == (None, None)
    assert differences(np.array([0.3, 0.3]), np.array([0.2, 0.5]))["rank_correlation"] is None


def test_shadow_results_that_are_all_alike_leave_room_for_one_that_is_not(store: Store) -> None:
    """30 requests that did not change showed a loss of exactly 0."""
    store.add([shadowed(0.0, 0.0, ndcg_delta=0.0)] * 30)
    loss = shadow_reports(store, "prune20", ["pruned"], 0.05)["pruned"].measures["ndcg_loss"]
    assert loss.low is not None
    assert loss.high is not None
    assert loss.low < -0.1 < loss.mean == 0 < 0.1 < loss.high


def test_the_share_of_lists_in_another_order_tells_a_plan_how_many_differ(store: Store) -> None:
    """A correlation of 1 is a hair below it, by rounding; one title has no order that could change."""
    falling = np.arange(20.0)[::-1]
    swapped = falling.copy()
    swapped[[18, 19]] = swapped[[19, 18]]
    rows = [(falling * 0.7 + 0.1) ** 3] * 30 + [swapped] * 10
    store.add(
        [shadowed(0.1, rank_correlation=differences(falling, row)["rank_correlation"]) for row in rows]
        + [shadowed(0.1, rank_correlation=None)] * 5
    )
    measures = shadow_reports(store, "prune20", ["pruned"], 0.05)["pruned"].measures
    changed = measures["order_changed"]
    assert (changed.mean, changed.requests) == (0.25, 40)


def test_the_requests_of_one_unit_are_one_observation_in_the_shadow(tmp_path: Path) -> None:
    """Sessions of 4 to 10 like requests: intervals missed the truth in 13 to 42 % of experiments."""
    store, rng = Store(f"sqlite:///{tmp_path / 'experiments.db'}"), np.random.default_rng(4)
    experiments, number = 120, 40
    means = rng.normal(0.0, 0.3, (experiments, number))
    rows = [
        shadowed(float(rng.normal(means[e, u], 0.05)), experiment=f"e{e}", unit=f"u{u}")
        for e in range(experiments)
        for u in range(number)
        for _ in range(rng.integers(4, 11))
    ]
    store.add(rows)
    found = [
        shadow_reports(store, f"e{e}", ["pruned"], 0.05)["pruned"].measures["mean_delta"]
        for e in range(experiments)
    ]
    assert {delta.units for delta in found} == {number}
    assert sum(delta.requests for delta in found) == len(rows)
    ends = [(delta.low, delta.high) for delta in found if delta.low is not None and delta.high is not None]
    assert len(ends) == experiments
    assert sum(not low < 0 < high for low, high in ends) <= 0.05 * len(ends)
    first: dict[str, list[float]] = {}
    for row in rows:
        if row.experiment == "e0":
            first.setdefault(str(row.unit), []).append(row.mean_delta)
    by_unit = [np.mean(values) for values in first.values()]
    assert found[0].mean == pytest.approx(np.mean(by_unit))
    error = np.std([*by_unit, -1, 1]) / np.sqrt(number)  # with a unit at each bound
    assert found[0].high == pytest.approx(np.mean(by_unit) + Boundary(0.05, 1000).multiplier(number) * error)


def test_a_correlation_is_never_above_1(tmp_path: Path) -> None:
    store, rng = Store(f"sqlite:///{tmp_path / 'experiments.db'}"), np.random.default_rng(4)
    store.add([shadowed(0.1, experiment="e", rank_correlation=c) for c in rng.uniform(0.9, 1, 60)])
    found = shadow_reports(store, "e", ["pruned"], 0.05)["pruned"].measures["rank_correlation"]
    assert (found.units, found.requests, found.high) == (60, 60, 1.0)
