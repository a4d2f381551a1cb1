"""A plan of an interleaving experiment promises a power, which simulated experiments must have."""

import numpy as np
import pytest
from statsmodels.stats.power import NormalIndPower

from headroom.service.experiments.clicks import ClickSums
from headroom.service.experiments.estimates import MIN_UNITS
from headroom.service.experiments.interleaving_plan import (
    Lists,
    PreferenceQuestion,
    make_interleaving_plan,
    measure_lists,
)
from headroom.service.experiments.plan import Question, make_plan
from headroom.service.experiments.preference import preference

EXPERIMENTS = 600
LOOKS = 50


def plan_of(question: PreferenceQuestion) -> tuple[int, int, int]:
    """The exposed units for one look and for looking at any time, and those with a click that decides."""
    plan = make_interleaving_plan(question, alpha=0.05, power=0.8)
    return plan.one_look.units, plan.any_time.units, plan.deciding_units


def concludes(question: PreferenceQuestion, clicks_per_unit: int, seed: int) -> bool:
    """Run one experiment with the planned units, and look at it as often as one likes."""
    rng = np.random.default_rng(seed)
    _, units, planned_units = plan_of(question)
    has_value = rng.random(units) < question.share
    clicks = 1 + rng.poisson(clicks_per_unit - 1, units)
    of_treatment = rng.binomial(clicks, (1 + question.effect) / 2)
    values = np.where(has_value, 2 * of_treatment / clicks - 1, 0.0)
    counts = np.cumsum(has_value)
    totals = np.cumsum(values)
    squares = np.cumsum(values**2)
    for look in np.linspace(0, units - 1, LOOKS + 1, dtype=int)[1:]:
        tally = ClickSums(units=int(counts[look]), total=float(totals[look]), squares=float(squares[look]))
        low, high = preference(tally, planned_units=planned_units, alpha=0.05).interval
        limit = 0.0 if question.margin is None else -question.margin
        if low > limit or (question.margin is None and high < 0):
            return True
    return False


LISTS = Lists(differing=0.8, deciding=0.4)
QUESTIONS = {
    "no worse, and truly alike": PreferenceQuestion(0.3, LISTS, margin=0.15),
    "no worse, and truly a little worse": PreferenceQuestion(0.5, LISTS, margin=0.2, effect=-0.05),
    "a large preference": PreferenceQuestion(0.3, LISTS, effect=-0.3),
    "small shares": PreferenceQuestion(0.05, Lists(0.2, 0.1), margin=0.2),
}


@pytest.mark.parametrize("case", QUESTIONS)
def test_experiments_with_the_planned_units_conclude_as_often_as_promised(case: str) -> None:
    power = np.mean([concludes(QUESTIONS[case], 1, seed) for seed in range(EXPERIMENTS)])
    assert power == pytest.approx(0.8, abs=0.05)


def test_units_with_several_clicks_each_need_no_more_than_planned() -> None:
    power = np.mean([concludes(QUESTIONS["no worse, and truly alike"], 3, seed) for seed in range(200)])
    assert power > 0.9


def test_one_look_is_that_of_statsmodels() -> None:
    question = PreferenceQuestion(0.25, Lists(1.0, 0.5), margin=0.1)
    solved = NormalIndPower(ddof=0).solve_power(effect_size=0.1, alpha=0.05, power=0.8, ratio=0)
    assert plan_of(question)[0] == pytest.approx(solved / (0.25 * 0.5), rel=1e-3)


def test_the_ab_test_beside_it_is_of_the_units_that_would_lose_their_click() -> None:
    question = PreferenceQuestion(0.3, LISTS, margin=0.05)
    lost = 0.05 * 0.3 * 0.4
    sd = (0.3 * 0.7) ** 0.5
    alone = make_plan(Question(0.3, sd, margin=lost, arm_sd=sd), alpha=0.05, power=0.8)
    plan = make_interleaving_plan(question, alpha=0.05, power=0.8)
    assert plan.ab == alone
    ratio = plan.ab.any_time.units / plan.any_time.units
    assert ratio == pytest.approx(4 * 0.7 / 0.4, rel=0.1)  # 4 (1 − clicked) / deciding


def test_a_preference_may_be_larger_than_what_clicks_can_show() -> None:
    question = PreferenceQuestion(0.9999, Lists(1.0, 1.0), effect=0.9999)
    assert make_interleaving_plan(question, alpha=0.05, power=0.8).any_time.units >= MIN_UNITS


def test_days_are_those_of_the_exposed_units() -> None:
    plan = make_interleaving_plan(QUESTIONS["small shares"], alpha=0.05, power=0.8, units_per_day=1000)
    assert plan.any_time.days == -(-plan.any_time.units // 1000)
    assert plan.ab.any_time.days == -(-plan.ab.any_time.units // 1000)


def test_lists_are_measured_with_clicks_that_fall_off_by_rank() -> None:
    falling = np.arange(10.0)[::-1]
    swapped = falling.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    seen = 1 / np.arange(1, 11)
    lists = measure_lists([(falling, falling), (falling, swapped)])
    assert lists.differing == 0.5
    assert lists.deciding == pytest.approx(0.5 * 1.5 / seen.sum())  # the first two titles of one list
    last = falling.copy()
    last[[8, 9]] = last[[9, 8]]
    assert measure_lists([(falling, last)]).differing == 1.0
    assert measure_lists([(falling, last)], shown=8) == Lists(0.0, 0.0)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"lists": Lists(0.0, 0.0), "margin": 0.1}, "the arms rank alike"),
        ({"lists": LISTS, "margin": 0.1, "effect": -0.1}, "leave nothing to rule out"),
    ],
)
def test_a_question_that_no_number_of_units_answers_is_refused(
    values: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        PreferenceQuestion(0.3, **values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no query"):
        measure_lists([])
