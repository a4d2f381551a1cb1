"""A plan that is too small wastes weeks: the promised power is what simulated experiments have."""

import numpy as np
import pytest
from statsmodels.stats.power import NormalIndPower
from statsmodels.stats.proportion import power_proportions_2indep

from headroom.service.experiments.plan import LOOK_EVERY, Question, make_plan
from tests.service.experiments.simulation import Design, Draw, Units, simulate

EXPERIMENTS = 4000


def units_of(question: Question, power: float = 0.8) -> tuple[int, int]:
    """Units for one look, and for looking at any time."""
    plan = make_plan(question, alpha=0.05, power=power)
    return plan.one_look.units, plan.any_time.units


def test_a_fixed_horizon_is_that_of_statsmodels() -> None:
    for share in (0.5, 0.2):
        question = Question(baseline=10, sd=5, effect=0.4, weights=(1 - share, share))
        solved = NormalIndPower().solve_power(
            effect_size=0.4 / 5, alpha=0.05, power=0.8, ratio=share / (1 - share)
        )
        assert units_of(question)[0] == pytest.approx(solved / (1 - share), rel=1e-3)


@pytest.mark.parametrize("effect", [0.03, -0.02])
def test_a_plan_for_shares_is_that_of_statsmodels(effect: float) -> None:
    """It took control's variance for both arms: 0.76 instead of 0.80 where the arm's is larger."""
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
