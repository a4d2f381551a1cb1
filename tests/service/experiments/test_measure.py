"""Our estimates beside tea-tasting's, the database's sums beside numpy's, and which units count."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from headroom.service.experiments.definition import Metric
from headroom.service.experiments.estimates import Moments, estimate
from headroom.service.experiments.events import Exposure, Outcome
from headroom.service.experiments.measure import read_facts
from headroom.service.experiments.store import Store
from tests.service.experiments.making import (
    NOBODY,
    assert_alike,
    experiment,
    exposure,
    measured,
    moments_of,
    run,
    send,
)


@pytest.fixture(scope="module")
def users() -> pd.DataFrame:
    """2,000 users with skewed values, a denominator and a covariate; unequal arms with an effect."""
    rng = np.random.default_rng(11)
    n = 2000
    variant = (rng.random(n) < 0.3).astype(int)
    before = rng.lognormal(1, 0.8, n)
    sessions = 1 + rng.poisson(3, n)
    spent = before * rng.lognormal(0, 0.5, n) + 0.5 * sessions + 0.3 * variant
    return pd.DataFrame(
        {
            "variant": variant,
            "spent": spent,
            "sessions": sessions.astype(float),
            "before": before,
            "ordered": (spent > 6).astype(float),
        }
    )


def both(
    users: pd.DataFrame, value: str, denominator: str | None = None, covariate: str | None = None
) -> list[Moments]:
    def columns(arm: pd.DataFrame) -> Moments:
        return moments_of(
            arm[value].to_numpy(),
            arm[denominator].to_numpy() if denominator else 0.0,
            arm[covariate].to_numpy() if covariate else 0.0,
        )

    return [columns(users[users["variant"] == arm]) for arm in (0, 1)]


@pytest.mark.parametrize(
    ("value", "denominator", "covariate"),
    [
        ("spent", None, None),
        ("ordered", None, None),
        ("spent", "sessions", None),
        ("spent", None, "before"),
        ("spent", "sessions", "before"),
    ],
    ids=["mean", "proportion", "ratio", "mean with CUPED", "ratio with CUPED"],
)
def test_estimates_are_those_of_tea_tasting(
    users: pd.DataFrame, value: str, denominator: str | None, covariate: str | None
) -> None:
    import tea_tasting as tt  # takes a second

    if denominator is None:
        theirs = tt.Mean(value, covariate, use_t=False, equal_var=False)
    else:
        theirs = tt.RatioOfMeans(value, denominator, covariate, use_t=False, equal_var=False)
    expected = tt.Experiment(metric=theirs).analyze(users)["metric"]

    parts = both(users, value, denominator, covariate)
    control, treated = (
        estimate(part, sum(parts, NOBODY), ratio=denominator is not None, adjusted=covariate is not None)
        for part in parts
    )
    difference = treated.value - control.value
    error = np.sqrt(control.variance + treated.variance)
    assert control.value == pytest.approx(expected.control)
    assert treated.value == pytest.approx(expected.treatment)
    assert difference == pytest.approx(expected.effect_size)
    assert 2 * stats.norm.sf(abs(difference / error)) == pytest.approx(expected.pvalue, rel=1e-6)
    assert difference - stats.norm.isf(0.025) * error == pytest.approx(expected.effect_size_ci_lower)


def test_a_covariate_that_never_varies_changes_nothing(users: pd.DataFrame) -> None:
    parts = both(users, "spent")
    constant = [moments_of(users["spent"][users["variant"] == arm].to_numpy(), 0.0, 5.0) for arm in (0, 1)]
    plain, adjusted = (
        estimate(parts[0], sum(parts, NOBODY)),
        estimate(constant[0], sum(constant, NOBODY), adjusted=True),
    )
    assert float(plain.value) == float(adjusted.value)
    assert float(plain.variance) == pytest.approx(float(adjusted.variance))


def test_parts_add_up_to_the_whole_even_far_from_zero() -> None:
    rng = np.random.default_rng(5)
    values = 1e9 + rng.normal(size=(3, 1000))
    whole = moments_of(*values)
    added = sum((moments_of(*values[:, start : start + 100]) for start in range(0, 1000, 100)), NOBODY)
    assert added.mean == pytest.approx(whole.mean)
    assert added.covariance == pytest.approx(np.cov(values), abs=1e-7)
    assert whole.covariance == pytest.approx(np.cov(values), abs=1e-7)


def test_a_mean_that_is_0_but_for_rounding_is_0() -> None:
    """A ratio over it has no value; 0.1 + 0.2 − 0.3 is 6e-17."""
    values = np.tile([0.1, 0.2, -0.3], 20)
    assert values.sum() != 0
    assert Moments.of(np.stack([values, values, values], -1)).mean.tolist() == [0, 0, 0]


def test_values_and_covariates_of_the_database_are_those_of_numpy(store: Store) -> None:
    """A unit's values count after its exposure, those of a covariate before."""
    rng = np.random.default_rng(3)
    n = 300
    arms = np.where(rng.random(n) < 0.5, "control", "pruned")
    exposed = rng.uniform(1000, 2000, n)
    store.add([Exposure("e", f"u{i}", str(arms[i]), 0, exposed[i], "v") for i in range(n)])
    after = np.zeros(n)
    before = np.zeros(n)
    outcomes = []
    for number in range(700):
        unit = rng.integers(n)
        delay = rng.uniform(-4000, 4000)
        value = float(rng.integers(1, 9))
        outcomes.append(Outcome("e", f"{number}", f"u{unit}", "clicks", value, exposed[unit] + delay))
        (after if delay > 0 else before)[unit] += value
    send(store, outcomes + outcomes[:50], [experiment(name="e")])
    send(store, [Outcome("other", "x", "u1", "clicks", 1e6, 3000.0)], [experiment(name="other")])
    found = measured(store, experiment(name="e"), Metric(name="clicks", covariate="clicks"), 1e6)
    for arm, moments in found.items():
        chosen = arms == arm
        assert_alike(moments, moments_of(after[chosen], 0.0, before[chosen]))


def test_facts_that_come_while_they_are_read_are_left_out(store: Store) -> None:
    """An outcome is read with its unit's index, which a unit that sorts before would change."""
    config = experiment(metrics=[{"name": "clicks"}])
    store.add([exposure("b"), exposure("c", "pruned")])
    send(store, [Outcome("prune20", "o", "c", "clicks", 1.0, 200.0)], [config])
    with store.read_all() as db:
        before = read_facts(db, run(config))
        store.add([exposure("a")])
        again = read_facts(db, run(config))
    with store.read_all() as db:
        after = read_facts(db, run(config))
    found = [
        (len(facts.units), facts.outcomes["clicks"]["unit"].tolist()) for facts in (before, again, after)
    ]
    assert found == [(2, [1]), (2, [1]), (3, [2])]
