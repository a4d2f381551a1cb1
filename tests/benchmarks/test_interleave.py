"""Interleaving finds what an A/B test on clicks needs many more users for, and raises no false alarms.

cases/rankings.npz holds the orders of the shipped model for the sample's test queries; this writes it again:
python -c "from benchmarks.interleave import *; Rankings.of_model(VARIANTS).save('tests/cases/rankings.npz')"
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.clicks import (
    CLICK_MODELS,
    Crowd,
    Rankings,
    Visits,
    click,
    position_based,
    visits,
)
from benchmarks.interleave import (
    CROWDS,
    alike,
    bias,
    blinded,
    differing,
    false_alarms,
    harm,
    lists_between,
    preferences,
)
from benchmarks.interleaved import CREDIT, PAGE, Page
from headroom.service.experiments.interleaving import draw

pytestmark = pytest.mark.more

BOTH = pytest.mark.parametrize("model", CLICK_MODELS)
RUNS = 12
USERS = 20_000


@pytest.fixture(scope="module")
def rankings() -> Rankings:
    return Rankings.load(Path(__file__).parents[1] / "cases" / "rankings.npz")


def some_visits(rankings: Rankings, users: int, seed: int = 0) -> Visits:
    return visits(Crowd(), users, users, len(rankings.grades), np.random.default_rng(seed))


@BOTH
def test_a_harmful_variant_is_found_with_a_fifteenth_of_the_units_of_an_ab_test(
    rankings: Rankings, model: str
) -> None:
    found = harm(rankings, CLICK_MODELS[model], RUNS, USERS)
    print(f"{model}: interleaving {found.units:,.0f} users, A/B test {found.ab_units:,.0f}")
    assert found.preference < 0  # it is control's titles that are preferred
    assert 15 * found.units <= min(found.ab_units, USERS)


@BOTH
@pytest.mark.parametrize("crowd", CROWDS)
def test_at_most_5_of_100_aa_experiments_raise_an_alarm_at_any_look(
    rankings: Rankings, crowd: str, model: str
) -> None:
    assert false_alarms(rankings, CROWDS[crowd], CLICK_MODELS[model]) <= 0.05


def test_an_aa_experiment_has_credit_to_be_wrong_about(rankings: Rankings) -> None:
    """Its arms have equal grades at every rank, but other titles: most lists and users count."""
    shown = alike(rankings)
    assert differing(shown) > 0.9
    of = some_visits(rankings, 2000)
    values = click(position_based, shown, rankings.grades, of, np.random.default_rng(1)).values
    assert np.isfinite(values).mean() > 0.4
    assert np.nanstd(values) > 0.5


@BOTH
def test_a_variant_against_itself_gives_no_credit_at_all(rankings: Rankings, model: str) -> None:
    shown = lists_between(rankings, "full")
    assert differing(shown) == 0
    of = some_visits(rankings, 500)
    clicks = click(CLICK_MODELS[model], shown, rankings.grades, of, np.random.default_rng(1))
    assert clicks.number.sum() > 0
    assert not clicks.given.any()
    assert preferences(clicks.values[None], 500)[0][-1].interval == (-1.0, 1.0)


@BOTH
def test_position_bias_favours_no_arm(rankings: Rankings, model: str) -> None:
    """Users who click by position alone, without looking at the title, prefer neither."""
    shown = lists_between(rankings, "half_lower")
    of = some_visits(rankings, 50_000)
    grades = blinded(rankings.grades)
    mean, z = bias(click(CLICK_MODELS[model], shown, grades, of, np.random.default_rng(1)).values)
    assert abs(z) < 3
    assert abs(mean) < 0.02
    # The check notices what it is for.
    unfair = lists_between(rankings, "half_lower", control_always_first)
    mean, z = bias(click(CLICK_MODELS[model], unfair, grades, of, np.random.default_rng(1)).values)
    assert z < -10
    assert mean < -0.05


def control_always_first(control: Sequence[int], treatment: Sequence[int]) -> list[Page]:
    """A team-draft without a coin."""
    drawn = draw(control, treatment, lambda _: 0)
    return [(drawn.order[:PAGE], [CREDIT.get(team, 0.0) for team in drawn.teams[:PAGE]], 1.0)]


def test_each_position_is_as_often_one_arms_as_the_others(rankings: Rankings) -> None:
    shown = lists_between(rankings, "half_lower")
    assert shown.probability.sum(1) == pytest.approx(1.0)
    at_position = (shown.probability[..., None] * shown.credit).sum(1)
    assert np.abs(at_position).max() < 1e-12
