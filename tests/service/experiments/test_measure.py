"""Arms are compared by the units of the same time, and by what these did while they had their arm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from service.experiments.analysis import analyse
from service.experiments.definition import ExperimentConfig, Metric
from service.experiments.events import Action, Exposure, Outcome
from service.experiments.measure import comparisons, measure
from service.experiments.report import Report
from service.experiments.state import identity, runs
from service.experiments.store import Store
from tests.service.experiments.making import ALWAYS, assert_alike, experiment, moments_of

DAY = 86_400.0
PERIOD = 10 * DAY
SPENT = Metric(name="spent", margin=0.03)


def act(store: Store, config: ExperimentConfig, time: float, kind: Any, **more: Any) -> None:
    detail = identity(config) if kind == "start" else ""
    store.record_action(Action("e", kind, time, "test", detail=detail, **more))


def report_of(store: Store, config: ExperimentConfig, now: float) -> Report:
    return analyse(store, config, [action for _, action in store.actions(["e"])], now)


def record(store: Store, outcomes: list[Outcome]) -> None:
    """In batches, as they come over HTTP; and statistics for the planner, as PostgreSQL gathers by itself."""
    for start in range(0, len(outcomes), 500):
        store.record_outcomes(outcomes[start : start + 500], [experiment(name="e")])
    with store._write() as db:
        db.execute(text("ANALYZE"))


def test_an_arms_harm_does_not_fade_after_its_end(store: Store) -> None:
    """Truth: 6 % worse, the margin 3 %. For three periods after the end all units behave alike."""
    config = experiment("control", "pruned", metrics=[SPENT], name="e", planned_units=2000)
    act(store, config, 0.0, "start")
    rng = np.random.default_rng(1)
    n = 1000
    arms = np.array(["control", "pruned"])[np.arange(n) % 2]
    buckets = 5000 * (np.arange(n) % 2) + rng.integers(0, 5000, n)
    exposed = rng.uniform(0, DAY, n)
    values: list[np.ndarray] = []
    store.add_exposures(
        [Exposure("e", f"u{i}", str(arms[i]), int(buckets[i]), exposed[i], "v") for i in range(n)]
    )

    def behave(period: int, *, is_treated: bool) -> None:
        worse = 0.06 * ((arms == "pruned") & is_treated)
        values.append(rng.normal(100, 10, n) * (1 - worse))
        at = exposed + period * PERIOD + DAY
        rows = [Outcome("e", f"{period}-{i}", f"u{i}", "spent", values[-1][i], at[i]) for i in range(n)]
        record(store, rows)

    behave(0, is_treated=True)
    while_it_runs = report_of(store, config, PERIOD)
    (found,) = while_it_runs.arms[0].metrics
    assert while_it_runs.recommendation == "stop"
    assert found.decision == "too_bad"

    half = experiment("control", "pruned", metrics=[SPENT], name="e", planned_units=2000)
    for kind, more in (
        ("stop", {}),
        ("ship", {"arm": "pruned"}),
        ("rollback", {"arm": "pruned"}),
        ("ramp", {"traffic": 0.0}),
    ):
        if kind == "stop":
            for period in (1, 2, 3):
                behave(period, is_treated=False)
        log = [action for _, action in store.actions(["e"])]
        log.append(Action("e", kind, PERIOD, "test", **more))  # type: ignore[arg-type]
        after = analyse(store, half, log, 5 * PERIOD)
        assert after.arms[0].metrics[0] == found
        assert after.recommendation == "stop"

    # Traffic halves: the upper half of each arm's buckets ends, the lower half goes on and is counted.
    log = [*(action for _, action in store.actions(["e"])), Action("e", "ramp", PERIOD, "test", traffic=0.5)]
    during = comparisons("control", ["pruned"], runs(config, log, 5 * PERIOD))["pruned"]
    sums = np.where(buckets % 5000 < 2500, sum(values), values[0])
    moments = measure(store, "e", SPENT, 5 * PERIOD, during).moments
    for arm in ("control", "pruned"):
        assert_alike(moments[arm], moments_of(sums[arms == arm]))

    # A window has to be over before the end: the units of the last hours do not count.
    windowed = SPENT.model_copy(update={"window_hours": 24.0 * 9.5})
    log = [*(action for _, action in store.actions(["e"])), Action("e", "stop", PERIOD, "test")]
    during = comparisons("control", ["pruned"], runs(config, log, 5 * PERIOD))["pruned"]
    moments = measure(store, "e", windowed, 5 * PERIOD, during).moments
    for arm in ("control", "pruned"):
        through = (arms == arm) & (exposed <= PERIOD - 9.5 * DAY)
        assert_alike(moments[arm], moments_of(values[0][through]))


def test_an_arm_that_left_is_compared_with_control_of_its_time(store: Store) -> None:
    """A/A/A: the share of units that click goes from 0.10 to 0.16, and c is rolled back halfway."""
    clicked = Metric(name="clicked", kind="proportion", margin=0.05)
    config = experiment("control", "b", "c", metrics=[clicked], name="e", planned_units=2000)
    act(store, config, 0.0, "start")
    act(store, config, 5 * DAY, "rollback", arm="c")
    rng = np.random.default_rng(2)
    n = 9000
    exposed = np.sort(rng.uniform(0, PERIOD, n))
    arms = np.array(["control", "b", "c"])[np.arange(n) % 3]
    there = (arms != "c") | (exposed < 5 * DAY)
    clicks = rng.random(n) < 0.10 + 0.06 * exposed / PERIOD
    store.add_exposures(
        [Exposure("e", f"u{i}", str(arms[i]), 1, exposed[i], "v") for i in np.flatnonzero(there)]
    )
    record(
        store,
        [
            Outcome("e", f"o{i}", f"u{i}", "clicked", 1.0, exposed[i] + 1)
            for i in np.flatnonzero(there & clicks)
        ],
    )
    report = report_of(store, config, PERIOD)
    b, c = (arm.metrics[0] for arm in report.arms)
    early = exposed < 5 * DAY
    assert (b.control_units, b.units) == tuple((arms == arm).sum() for arm in ("control", "b"))
    assert (c.control_units, c.units) == tuple((early & (arms == arm)).sum() for arm in ("control", "c"))
    # An outcome of the last second before the rollback may fall after it, and then does not count.
    assert c.control_value == pytest.approx(clicks[early & (arms == "control")].mean(), abs=1e-3)
    for found in (b, c):
        assert found.relative_low is not None
        assert found.relative_low < 0 < found.relative_high  # type: ignore[operator]
        assert found.decision == "undecided"


def test_an_outcome_in_whole_seconds_comes_after_an_exposure_in_the_same_second(store: Store) -> None:
    store.add_exposures([Exposure("e", "u", "control", 1, 100.7, "v")])
    record(
        store,
        [Outcome("e", f"{time}", "u", "clicks", value, time) for time, value in ((99.0, 1.0), (100.0, 10.0))],
    )
    metric = Metric(name="clicks", covariate="clicks")
    found = measure(store, "e", metric, 200.0, ALWAYS).moments["control"]
    assert list(found.mean) == [10, 0, 1]


def test_an_a_a_test_with_a_pause_sees_no_difference_in_who_returns(store: Store) -> None:
    """Busy users spend more. In the pause after a rollback nobody is exposed; the busy ones return."""
    config = experiment(name="e", planned_units=2000, metrics=[SPENT])
    log: list[tuple[float, Any, dict[str, Any]]] = [
        (0.0, "start", {}),
        (10.0, "rollback", {"arm": "pruned"}),
        (30.0, "reinstate", {"arm": "pruned"}),
        (30.0, "ramp", {"traffic": 1.0}),
    ]
    for time, kind, more in log:
        act(store, config, time, kind, **more)
    rng = np.random.default_rng(4)
    exposures, outcomes = [], []
    for i in range(3000):
        visits = np.cumsum(rng.exponential(1 / rng.gamma(1.0, 0.2), 60))
        visits = visits[visits < 40]
        exposed = visits[(visits < 10) | (visits >= 30)]
        if len(exposed):
            arm = ("control", "pruned")[i % 2]
            exposures.append(Exposure("e", f"u{i}", arm, 5000 * (i % 2) + 1, float(exposed[0]), "v", "1.0 "))
        outcomes += [Outcome("e", f"{i}-{k}", f"u{i}", "spent", 1.0, at) for k, at in enumerate(visits)]
    store.add_exposures(exposures)
    record(store, outcomes)
    report = report_of(store, config, 40.0)
    assert not report.sample_ratio.alarm
    found = report.arms[0].metrics[0]
    assert found.units + found.control_units == len(exposures)
    assert found.relative == pytest.approx(0, abs=0.1)
    assert found.relative_low is not None
    assert found.relative_low < 0 < found.relative_high  # type: ignore[operator]


def test_a_stop_and_a_resumption_lose_only_what_happened_between(store: Store) -> None:
    config = experiment("control", "b", name="e", planned_units=2000)
    for time, kind, more in (
        (0.0, "start", {}),
        (100.0, "stop", {}),
        (200.0, "ramp", {"traffic": 0.5}),
        (300.0, "ramp", {"traffic": 1.0}),
    ):
        act(store, config, time, kind, **more)
    store.add_exposures(
        [Exposure("e", "low", "control", 10, 50.0, "v"), Exposure("e", "high", "control", 4000, 60.0, "v")]
    )
    record(
        store,
        [
            Outcome("e", f"{unit} {time}", unit, "clicks", value, time)
            for unit in ("low", "high")
            for time, value in ((90.0, 1.0), (190.0, 10.0), (290.0, 100.0), (390.0, 1000.0))
        ],
    )
    log = [action for _, action in store.actions(["e"])]
    during = comparisons("control", ["b"], runs(config, log, 400.0))["b"]
    found = measure(store, "e", Metric(name="clicks"), 400.0, during).moments["control"]
    assert found.units == 2
    assert float(found.mean[0] * 2) == pytest.approx(1101 + 1001)  # the high one was off until 300
