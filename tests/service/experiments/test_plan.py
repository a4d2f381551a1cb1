"""A plan that is too small wastes weeks: the promised power is what simulated experiments have."""

import numpy as np
import pytest

from headroom.service.experiments.clicks import LIST
from headroom.service.experiments.estimates import MIN_UNITS, Boundary
from headroom.service.experiments.plan import PreferenceQuestion, Question, make_plan
from headroom.service.experiments.preference import preference
from tests.service.experiments.simulation import Design, Draw, Units, simulate

EXPERIMENTS = 4000
LOOK_EVERY = 100


def units_of(question: Question | PreferenceQuestion) -> tuple[int, int]:
    """Units for one look, and for looking at any time."""
    plan = make_plan(question, power=0.8)
    return plan.one_look.units, plan.any_time.units


def test_a_fixed_horizon_is_that_of_statsmodels() -> None:
    from statsmodels.stats.power import NormalIndPower

    for share in (0.5, 0.2):
        question = Question(baseline=10, sd=5, effect=0.4, weights=(1 - share, share))
        solved = NormalIndPower().solve_power(
            effect_size=0.4 / 5, alpha=0.05, power=0.8, ratio=share / (1 - share)
        )
        assert units_of(question)[0] == pytest.approx(solved / (1 - share), rel=1e-3)


@pytest.mark.parametrize("effect", [0.03, -0.02])
def test_a_plan_for_shares_is_that_of_statsmodels(effect: float) -> None:
    """It took control's variance for both arms: 0.76 instead of 0.80 where the arm's is larger."""
    from statsmodels.stats.proportion import power_proportions_2indep

    arm = 0.05 + effect
    question = Question(0.05, (0.05 * 0.95) ** 0.5, effect=effect, arm_sd=(arm * (1 - arm)) ** 0.5)
    once, _ = units_of(question)
    assert power_proportions_2indep(effect, 0.05, once / 2).power == pytest.approx(0.8, abs=0.001)


def clicks(treated: np.ndarray, rng: np.random.Generator) -> Units:
    return Units((rng.random(treated.shape) < 0.3).astype(np.float64))


def worse_clicks(treated: np.ndarray, rng: np.random.Generator) -> Units:
    return Units((rng.random(treated.shape) < 0.3 - 0.016 * treated).astype(np.float64))


def many_more_clicks(treated: np.ndarray, rng: np.random.Generator) -> Units:
    return Units((rng.random(treated.shape) < 0.05 + 0.03 * treated).astype(np.float64))


def spending(treated: np.ndarray, rng: np.random.Generator) -> Units:
    return Units(rng.gamma(4.0, 2.5, treated.shape) + 0.9 * treated)


SD = (0.3 * 0.7) ** 0.5
CASES: dict[str, tuple[Question, Draw]] = {
    "non-inferior, no effect": (Question(0.3, SD, margin=0.08), clicks),
    "non-inferior, a little worse": (Question(0.3, SD, margin=0.09, effect=-0.016), worse_clicks),
    "difference of rare clicks": (
        Question(0.05, (0.05 * 0.95) ** 0.5, effect=0.03, weights=(0.7, 0.3), arm_sd=(0.08 * 0.92) ** 0.5),
        many_more_clicks,
    ),
    "difference, unequal arms": (Question(10, 5, effect=0.9, weights=(0.7, 0.3)), spending),
}


@pytest.mark.parametrize("case", CASES)
def test_experiments_conclude_as_often_as_planned(case: str) -> None:
    question, draw = CASES[case]
    _, planned = units_of(question)
    looks = planned // LOOK_EVERY
    units = planned // looks * looks
    design = Design(
        units,
        every=units // looks,
        share=question.weights[1] / sum(question.weights),
        margin=None if question.margin is None else question.margin / question.baseline,
    )
    found = simulate(design, draw, experiments=EXPERIMENTS, truth=question.effect, seed=8)
    assert (found.good > 0).mean() == pytest.approx(0.8, abs=0.03)
    assert np.median(found.good[found.good > 0]) < 0.7 * units  # it mostly ends well before the plan


EXPOSED_NOBODY = np.zeros(0, LIST)


def concludes(question: PreferenceQuestion, clicks_per_unit: int, seed: int) -> bool:
    """Run one interleaving experiment with the planned units, and look at it as often as one likes."""
    rng = np.random.default_rng(seed)
    planned = make_plan(question, power=0.8).tested_units
    clicks = 1 + rng.poisson(clicks_per_unit - 1, planned)
    values = 2 * rng.binomial(clicks, (1 + question.effect) / 2) / clicks - 1
    for units in np.linspace(0, planned, 51, dtype=int)[1:]:
        found = preference("click", EXPOSED_NOBODY, values[:units], Boundary(0.05, planned))
        low, high = found.interval
        limit = 0.0 if question.margin is None else -question.margin
        if low > limit or (question.margin is None and high < 0):
            return True
    return False


QUESTIONS = {
    "no worse, and truly alike": PreferenceQuestion(0.3, 0.4, margin=0.15),
    "no worse, and truly a little worse": PreferenceQuestion(0.5, 0.4, margin=0.2, effect=-0.05),
    "a large preference": PreferenceQuestion(0.3, 0.4, effect=-0.3),
    "small shares": PreferenceQuestion(0.05, 0.1, margin=0.2),
}


@pytest.mark.parametrize("case", QUESTIONS)
def test_interleaving_concludes_as_often_as_planned(case: str) -> None:
    power = np.mean([concludes(QUESTIONS[case], 1, seed) for seed in range(600)])
    assert power == pytest.approx(0.8, abs=0.05)


def test_units_with_several_clicks_each_need_no_more_than_planned() -> None:
    power = np.mean([concludes(QUESTIONS["no worse, and truly alike"], 3, seed) for seed in range(200)])
    assert power > 0.9


def test_one_look_at_a_preference_is_that_of_statsmodels() -> None:
    from statsmodels.stats.power import NormalIndPower

    solved = NormalIndPower(ddof=0).solve_power(effect_size=0.1, alpha=0.05, power=0.8, ratio=0)
    assert units_of(PreferenceQuestion(0.25, 0.5, margin=0.1))[0] == pytest.approx(solved / 0.125, rel=1e-3)


def test_the_ab_test_beside_it_is_of_the_units_that_would_lose_their_click() -> None:
    question = PreferenceQuestion(0.3, 0.4, margin=0.05)
    sd = (0.3 * 0.7) ** 0.5
    ab = question.ab_question()
    assert (ab.baseline, ab.sd, ab.margin) == pytest.approx((0.3, sd, 0.05 * 0.3 * 0.4))
    ratio = units_of(ab)[1] / units_of(question)[1]
    assert ratio == pytest.approx(4 * 0.7 / 0.4, rel=0.1)  # 4 (1 − clicked) / deciding


def test_a_preference_may_be_larger_than_what_clicks_can_show() -> None:
    assert units_of(PreferenceQuestion(0.9999, 1.0, effect=0.9999))[1] >= MIN_UNITS


def test_days_are_those_of_the_exposed_units() -> None:
    plan = make_plan(QUESTIONS["small shares"], power=0.8, units_per_day=1000)
    assert plan.any_time.days == -(-plan.any_time.units // 1000)


@pytest.mark.parametrize(
    ("deciding", "effect", "reason"),
    [(0.0, 0.0, "the arms rank alike"), (0.4, -0.1, "leave nothing to rule out")],
)
def test_a_question_that_no_number_of_units_answers_is_refused(
    deciding: float, effect: float, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        PreferenceQuestion(0.3, deciding, margin=0.1, effect=effect)
