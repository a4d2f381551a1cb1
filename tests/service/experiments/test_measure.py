"""Our estimates beside tea-tasting's, the database's sums beside numpy's, and which units count."""

import numpy as np
import pandas as pd
import pytest
import tea_tasting as tt
from scipy import stats
from sqlalchemy import text

from headroom.service.experiments.definition import Metric
from headroom.service.experiments.estimates import NOBODY, Moments, estimate
from headroom.service.experiments.events import Exposure, Outcome
from headroom.service.experiments.measure import measure
from headroom.service.experiments.store import Store
from tests.service.experiments.making import (
    ALWAYS,
    assert_alike,
    experiment,
    moments_of,
    send,
)

DAY = 86_400.0
SPENT = Metric(name="spent", margin=0.03)


def record(store: Store, outcomes: list[Outcome]) -> None:
    """In batches, as they come over HTTP; and statistics for the planner, as PostgreSQL gathers by itself."""
    for start in range(0, len(outcomes), 500):
        send(store, outcomes[start : start + 500], [experiment(name="e")])
    with store.write() as db:
        db.execute(text("ANALYZE"))


def test_an_outcome_in_whole_seconds_comes_after_an_exposure_in_the_same_second(store: Store) -> None:
    store.add([Exposure("e", "u", "control", 1, 100.7, "v")])
    record(
        store,
        [Outcome("e", f"{time}", "u", "clicks", value, time) for time, value in ((99.0, 1.0), (100.0, 10.0))],
    )
    metric = Metric(name="clicks", covariate="clicks")
    found = measure(store, "e", metric, 200.0, ALWAYS).moments["control"]
    assert list(found.mean) == [10, 0, 1]


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


def fill(store: Store, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Exposures and outcomes of 300 units; returns what each column of a unit is by the metric's rules."""
    n = 300
    arms = np.where(rng.random(n) < 0.5, "control", "pruned")
    exposed = rng.uniform(1000, 2000, n)
    store.add([Exposure("e", f"u{i}", str(arms[i]), 0, exposed[i], "v") for i in range(n)])
    columns = {name: np.zeros(n) for name in ("clicks", "views", "before", "in_window")}
    outcomes = []
    for i in range(n):
        for k in range(rng.integers(0, 6)):
            at = exposed[i] + rng.uniform(-4000, 4000)
            metric = ["clicks", "views"][k % 2]
            value = float(rng.integers(1, 9))
            outcomes.append(Outcome("e", f"{i}-{k}", f"u{i}", metric, value, at))
            if metric == "clicks" and at < exposed[i]:
                columns["before"][i] += value
            elif at >= exposed[i]:
                columns[metric][i] += value
                if metric == "clicks" and at < exposed[i] + 3600:
                    columns["in_window"][i] += value
    send(store, outcomes + outcomes[:50], [experiment(name="e")])
    send(store, [Outcome("other", "x", "u1", "clicks", 1e6, 3000.0)], [experiment(name="other")])
    return columns | {"arm": arms, "exposed": exposed}


def test_sums_in_the_database_are_those_of_numpy(store: Store) -> None:
    c = fill(store, np.random.default_rng(3))
    now = 1e6
    cases = [
        (Metric(name="clicks", covariate="clicks"), (c["clicks"], 0.0, c["before"])),
        (Metric(name="clicks", kind="proportion"), ((c["clicks"] > 0).astype(float),)),
        (Metric(name="clicks", kind="ratio", denominator="views"), (c["clicks"], c["views"])),
        (Metric(name="clicks", window_hours=1.0), (c["in_window"],)),
        (Metric(name="nobody"), (np.zeros(300),)),
    ]
    for metric, columns in cases:
        found = measure(store, "e", metric, now, ALWAYS).moments
        assert set(found) == {"control", "pruned"}
        for arm, moments in found.items():
            chosen = c["arm"] == arm
            assert_alike(moments, moments_of(*(v[chosen] if np.ndim(v) else v for v in columns)))
    # Units count only once their window is over.
    windowed = cases[3][0]
    for arm, moments in measure(store, "e", windowed, 1500.0 + 3600, ALWAYS).moments.items():
        through = (c["arm"] == arm) & (c["exposed"] <= 1500)
        assert_alike(moments, moments_of(c["in_window"][through]))
