"""Interleaving finds what an A/B test on clicks needs many more users for, and raises no false alarms.

cases/rankings.npz holds the orders of the shipped model for the sample's test queries; this writes it again:
python -c "from benchmarks.interleave import *; Rankings.of_model(VARIANTS).save('tests/cases/rankings.npz')"
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import interleaved
from benchmarks.clicks import (
    CLICK_MODELS,
    NO_TITLE,
    Crowd,
    Rankings,
    Visits,
    cascade,
    click,
    hasty,
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
    signal,
)
from benchmarks.interleaved import CREDIT, PAGE, Page, alone
from headroom.service.experiments.interleaving import draw
from tests.checkpoints import write_checkpoint

BOTH = pytest.mark.parametrize("model", CLICK_MODELS)
RUNS = 12
USERS = 20_000


@pytest.fixture(scope="module")
def rankings() -> Rankings:
    return Rankings.load(Path(__file__).parents[1] / "cases" / "rankings.npz")


def test_a_models_orders_are_saved_and_read_as_they_are(tmp_path: Path, rankings: Rankings) -> None:
    model = write_checkpoint(tmp_path / "model")
    scored = Rankings.of_model({"full": "none", "off": "0-1.*"}, model)
    scored.save(tmp_path / "rankings.npz")
    again = Rankings.load(tmp_path / "rankings.npz")
    assert np.array_equal(again.grades, rankings.grades)
    for name, orders in scored.orders.items():
        assert np.array_equal(again.orders[name], orders)
        for query, grades in enumerate(again.grades):
            assert sorted(again.ranking(name, query)) == list(range((grades != NO_TITLE).sum()))
    assert not np.array_equal(again.orders["full"], again.orders["off"])


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


@pytest.mark.parametrize("way", ["balanced", "optimized", "classic_team_draft", "counterfactual"])
def test_other_ways_show_each_title_once_and_all_their_chances_add_up(rankings: Rankings, way: str) -> None:
    shown = lists_between(first_queries(rankings), "half_lower", getattr(interleaved, way))
    assert shown.probability.sum(1) == pytest.approx(1.0)
    for titles, chances in zip(shown.titles, shown.probability, strict=True):
        for page in titles[chances > 0]:
            assert len(set(page.tolist())) == PAGE


def first_queries(rankings: Rankings) -> Rankings:
    """Return the first queries, which are enough."""
    return Rankings(rankings.grades[:20], {name: order[:20] for name, order in rankings.orders.items()})


def test_optimized_lists_favour_no_arm_with_users_who_click_by_position(rankings: Rankings) -> None:
    shown = lists_between(first_queries(rankings), "half_lower", interleaved.optimized)
    assert np.abs((shown.probability[..., None] * shown.credit).sum(1)).max() < 1e-6
    assert differing(shown) > 0.8


def test_users_click_as_their_model_says() -> None:
    """Shares of clicks by position, against the probabilities worked out by hand."""
    rng = np.random.default_rng(1)
    attraction = np.full((400_000, 3), 0.5)
    grades = np.tile([0, 4, 2], (400_000, 1))  # they leave after a click with chance 0.1, 0.7, 0.4
    by_position = position_based(attraction, grades, rng).mean(0)
    assert by_position == pytest.approx([0.5, 0.3536, 0.2887], abs=0.004)
    assert hasty(attraction, grades, rng).mean(0) == pytest.approx([0.5, 0.25, 0.1667], abs=0.004)
    goes_on = [1.0, 1 - (0.5 * 0.1 + 0.5 * 0.15)]
    goes_on.append(goes_on[1] * (1 - (0.5 * 0.7 + 0.5 * 0.15)))
    assert cascade(attraction, grades, rng).mean(0) == pytest.approx([0.5 * p for p in goes_on], abs=0.004)


def test_a_user_counts_once_however_often_he_clicks(rankings: Rankings) -> None:
    """20 lists of one query are the same list, and give the user one value between −1 and 1."""
    rng = np.random.default_rng(1)
    of = visits(Crowd(heavy=1.0), 50, 50, len(rankings.grades), rng)
    for user in range(50):
        assert len(set(of.query[of.user == user])) == 1
        assert len(set(of.luck[of.user == user])) == 1
    clicks = click(cascade, lists_between(rankings, "half_lower"), rankings.grades, of, rng)
    assert (clicks.lists == 20).all()
    assert clicks.given.max() > 20
    assert np.nanmax(np.abs(clicks.values)) <= 1


def test_the_arms_of_an_ab_test_see_their_own_lists(rankings: Rankings) -> None:
    shown = lists_between(rankings, "half_lower", alone)
    assert shown.titles[5, 0].tolist() == rankings.ranking("full", 5)[:PAGE]
    assert shown.titles[5, 1].tolist() == rankings.ranking("half_lower", 5)[:PAGE]
    of = some_visits(rankings, 100)
    everything = replace(of, is_bot=np.ones_like(of.is_bot))
    clicks = click(cascade, shown, rankings.grades, everything, np.random.default_rng(1))
    assert np.array_equal(clicks.number, PAGE * clicks.lists)


def test_the_signal_is_z_squared_per_user() -> None:
    values = np.array([1.0, 1.0, -1.0, 1.0, math.nan, math.nan, math.nan, math.nan])
    z = 0.5 / (math.sqrt(0.75) / math.sqrt(4))
    assert signal(values) == pytest.approx(z**2 / 8)
