"""The judgement of an interleaving experiment: what it says of few units, of one-sided ones, and of many."""

import numpy as np
import pytest
from scipy import stats

from headroom.service.experiments.clicks import ClickSums
from headroom.service.experiments.estimates import Boundary
from headroom.service.experiments.preference import preference
from headroom.service.experiments.report import Preference


def tally_of(values: np.ndarray) -> ClickSums:
    """Add up units' values as the store does."""
    return ClickSums(
        units=len(values),
        total=float(values.sum()),
        squares=float(np.square(values).sum()),
        wins=int((values > 0).sum()),
        losses=int((values < 0).sum()),
        ties=int((values == 0).sum()),
        impressions=3 * len(values),
        differing=2 * len(values),
    )


def judge(values: np.ndarray, planned_units: int = 1000) -> Preference:
    return preference(tally_of(values), planned_units=planned_units, alpha=0.05)


def test_without_a_click_nothing_is_claimed() -> None:
    found = preference(ClickSums(impressions=40, differing=12), planned_units=1000, alpha=0.05)
    assert found == Preference(0.0, (-1.0, 1.0), 1.0, 0, 40, 12, 0, 0, 0)


def test_fewer_than_thirty_units_make_no_claim() -> None:
    few = judge(np.ones(29))
    assert few.estimate == 1.0
    assert few.interval == (-1.0, 1.0)
    assert few.p == 1.0
    enough = judge(np.ones(30))
    assert 0 < enough.interval[0] < 1
    assert enough.p < 0.05


def test_the_interval_is_the_mean_and_its_standard_error_times_the_boundary() -> None:
    values = np.random.default_rng(1).choice([-1.0, -0.5, 0.0, 0.5, 1.0], 4000, p=[0.3, 0.1, 0.2, 0.1, 0.3])
    found = judge(values)
    radius = stats.sem(values) * float(Boundary(0.05, 1000).multiplier(4000))
    assert found.estimate == pytest.approx(values.mean())
    assert found.interval == pytest.approx((values.mean() - radius, values.mean() + radius), abs=1e-4)
    assert (found.wins, found.losses, found.ties) == (
        (values > 0).sum(),
        (values < 0).sum(),
        (values == 0).sum(),
    )
    assert (found.units, found.impressions, found.differing) == (4000, 12_000, 8000)


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.05, 0.08, 0.2])
def test_p_is_below_alpha_exactly_if_the_interval_excludes_zero(shift: float) -> None:
    values = np.random.default_rng(2).choice([-1.0, 1.0], 3000, p=[0.5 - shift / 2, 0.5 + shift / 2])
    found = judge(values)
    assert (found.p < 0.05) == (found.interval[0] > 0 or found.interval[1] < 0)


def test_units_that_all_prefer_one_arm_do_not_rule_out_others_that_have_not_come_yet() -> None:
    """One unit in 50 prefers the treatment; the first 30 may well be all control's."""
    misses = 0
    for seed in range(400):
        values = np.where(np.random.default_rng(seed).random(600) < 0.02, 1.0, -1.0)
        looks = [judge(values[:units]).interval for units in range(30, 601, 30)]
        misses += any(not low <= -0.96 <= high for low, high in looks)
    assert misses <= 20


def test_a_swap_of_the_arms_turns_the_judgement_round() -> None:
    values = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], 500, p=[0.2, 0.3, 0.5])
    one = judge(values)
    other = judge(-values)
    assert other.estimate == -one.estimate
    assert other.interval == (-one.interval[1], -one.interval[0])
    assert (other.wins, other.losses, other.p) == (one.losses, one.wins, one.p)
