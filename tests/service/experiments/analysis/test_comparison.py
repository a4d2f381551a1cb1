"""Arms are compared by the units of the same time, and by what these did while they had their arm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from service.experiments.analysis import aggregates
from service.experiments.analysis.comparison import comparisons
from service.experiments.analysis.moments import Moments
from service.experiments.analysis.report import analyse
from service.experiments.analysis.report_spec import ReportSpec
from service.experiments.definition.config import ExperimentConfig
from service.experiments.definition.epochs import Epoch
from service.experiments.definition.events import Action, Exposure, Outcome
from service.experiments.definition.metric import Metric
from service.experiments.definition.state import identity, runs
from service.experiments.storage.store import Store

DAY = 86_400.0
PERIOD = 10 * DAY
SPENT = Metric(name="spent", margin=0.03)


def experiment(*arms: str, metrics: list[Metric] | None = None, **more: Any) -> ExperimentConfig:
    values = {"name": "e", "salt": "s", "arms": [{"name": arm, "variant": arm} for arm in arms], **more}
    return ExperimentConfig.model_validate(values | {"metrics": metrics or [], "planned_units": 2000})


def act(store: Store, config: ExperimentConfig, time: float, kind: Any, **more: Any) -> None:
    detail = identity(config) if kind == "start" else ""
    store.record_action(Action("e", kind, time, "test", detail=detail, **more))


def spec(store: Store, config: ExperimentConfig, now: float) -> ReportSpec:
    return ReportSpec.of(config, [action for _, action in store.actions(["e"])], now)


def record(store: Store, outcomes: list[Outcome]) -> None:
    """In batches, as they come over HTTP; and statistics for the planner, as PostgreSQL gathers by itself."""
    for start in range(0, len(outcomes), 500):
        store.record_outcomes(outcomes[start : start + 500], ["e"])
    with store._write() as db:
        db.execute(text("ANALYZE"))


def test_an_arms_harm_does_not_fade_after_its_end(store: Store) -> None:
    """Truth: 6 % worse, the margin 3 %. For three periods after the end all units behave alike."""
    config = experiment("control", "pruned", metrics=[SPENT])
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
    while_it_runs = analyse(store, spec(store, config, PERIOD), PERIOD)
    (found,) = while_it_runs.arms[0].metrics
    assert while_it_runs.recommendation == "stop"
    assert found.decision == "too_bad"

    half = experiment("control", "pruned", metrics=[SPENT])
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
        after = analyse(store, ReportSpec.of(half, log, 5 * PERIOD), 5 * PERIOD)
        assert after.arms[0].metrics[0] == found
        assert after.recommendation == "stop"

    # Traffic halves: the upper half of each arm's buckets ends, the lower half goes on and is counted.
    log = [*(action for _, action in store.actions(["e"])), Action("e", "ramp", PERIOD, "test", traffic=0.5)]
    during = comparisons("control", ["pruned"], runs(config, log, 5 * PERIOD))["pruned"]
    sums = np.where(buckets % 5000 < 2500, sum(values), values[0])
    moments = aggregates.measure(store, "e", SPENT, 5 * PERIOD, during).moments
    for arm in ("control", "pruned"):
        assert_alike(moments[arm], Moments.of(sums[arms == arm]))

    # A window has to be over before the end: the units of the last hours do not count.
    windowed = SPENT.model_copy(update={"window_hours": 24.0 * 9.5})
    log = [*(action for _, action in store.actions(["e"])), Action("e", "stop", PERIOD, "test")]
    during = comparisons("control", ["pruned"], runs(config, log, 5 * PERIOD))["pruned"]
    moments = aggregates.measure(store, "e", windowed, 5 * PERIOD, during).moments
    for arm in ("control", "pruned"):
        through = (arms == arm) & (exposed <= PERIOD - 9.5 * DAY)
        assert_alike(moments[arm], Moments.of(values[0][through]))


def assert_alike(found: Moments, expected: Moments) -> None:
    assert found.units == expected.units
    assert found.mean == pytest.approx(expected.mean, rel=1e-12)
    assert found.scatter == pytest.approx(expected.scatter, rel=1e-9)


def test_an_arm_that_left_is_compared_with_control_of_its_time(store: Store) -> None:
    """A/A/A: the share of units that click goes from 0.10 to 0.16, and c is rolled back halfway."""
    clicked = Metric(name="clicked", kind="proportion", margin=0.05)
    config = experiment("control", "b", "c", metrics=[clicked])
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
    report = analyse(store, spec(store, config, PERIOD), PERIOD)
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


def test_after_its_return_an_arm_meets_control_units_that_return_too(store: Store) -> None:
    """Each unit of this table by hand: when it came, what it did, and for which comparison that counts."""
    config = experiment("control", "b", "c")
    act(store, config, 0.0, "start")
    act(store, config, 100.0, "rollback", arm="c")
    act(store, config, 200.0, "reinstate", arm="c")
    epochs = [Epoch.of(1, 1.0, ()).label, Epoch.of(2, 1.0, "c").label, Epoch.of(3, 1.0, ()).label]

    def came(unit: str, arm: str, *times: float) -> None:
        for time in times:
            epoch = epochs[int(time // 100)]
            store.add_exposures([Exposure("e", unit, arm, 1, time, "v", epoch)])

    came("early", "control", 50)
    came("meanwhile", "control", 150)
    came("meanwhile and again", "control", 150, 250)
    came("late", "control", 260)
    came("c, early", "c", 60)
    came("c, early and again", "c", 60, 270)
    came("c, late", "c", 280)
    came("b", "b", 70)
    units = ("early", "meanwhile", "meanwhile and again", "late", "c, early", "c, early and again", "c, late")
    record(
        store,
        [
            Outcome("e", f"{unit} {time}", unit, "clicks", value, time)
            for unit in (*units, "b")
            for time, value in ((90.0, 1.0), (190.0, 10.0), (290.0, 100.0))
        ],
    )
    log = [action for _, action in store.actions(["e"])]
    by_arm = comparisons("control", ["b", "c"], runs(config, log, 400.0))
    clicks = Metric(name="clicks")

    def measured(arm: str, metric: Metric = clicks) -> dict[str, list[float]]:
        moments = aggregates.measure(store, "e", metric, 400.0, by_arm[arm]).moments
        return {
            name: [float(of.units), round(float(of.mean[0] * of.units), 6)] for name, of in moments.items()
        }

    # early 101, again 100, late 100; of c: early 101 twice, late 100.
    assert measured("c") == {"control": [3, 301], "c": [3, 302]}
    # early 111, meanwhile 110 twice, late 100; b 111: nothing of it changes for b.
    assert measured("b") == {"control": [4, 431], "b": [1, 111]}
    # A window of 72 seconds that the rollback breaks does not count, nor does it count later.
    windowed = clicks.model_copy(update={"window_hours": 0.02})
    assert measured("c", windowed) == {"control": [2, 200], "c": [1, 100]}
    # Before: again and late have the 1 of before the rollback, and so has c's late unit. What control's
    # units did while c was away is no history: c's units had the default then.
    history = Metric(name="spent", covariate="clicks")
    found = aggregates.measure(store, "e", history, 400.0, by_arm["c"]).moments
    assert {arm: round(float(of.mean[2] * of.units), 6) for arm, of in found.items()} == {
        "control": 2,
        "c": 1,
    }


def test_an_outcome_in_whole_seconds_comes_after_an_exposure_in_the_same_second(store: Store) -> None:
    store.add_exposures([Exposure("e", "u", "control", 1, 100.7, "v")])
    record(
        store,
        [Outcome("e", f"{time}", "u", "clicks", value, time) for time, value in ((99.0, 1.0), (100.0, 10.0))],
    )
    metric = Metric(name="clicks", covariate="clicks")
    found = aggregates.measure(store, "e", metric, 200.0).moments["control"]
    assert list(found.mean) == [10, 0, 1]


def test_an_a_a_a_test_with_a_return_sees_no_difference_in_who_returns(store: Store) -> None:
    """Busy users spend more. While c is away its new users are not exposed; the busy ones return."""
    config = experiment("control", "b", "c", metrics=[SPENT])
    for time, kind, more in (
        (0.0, "start", {}),
        (10.0, "rollback", {"arm": "c"}),
        (30.0, "reinstate", {"arm": "c"}),
    ):
        act(store, config, time, kind, **more)
    epochs = [Epoch.of(number, 1.0, gone).label for number, gone in ((1, ""), (2, "c"), (3, ""))]
    ends = (10.0, 30.0, 40.0)
    rng = np.random.default_rng(4)
    exposures, outcomes = [], []
    for i in range(3000):
        arm = ("control", "b", "c")[i % 3]
        rate = rng.gamma(1.0, 0.2)
        visits = np.cumsum(rng.exponential(1 / rate, 60))
        visits = visits[visits < 40]
        for epoch in range(3):
            start = 0.0 if epoch == 0 else ends[epoch - 1]
            inside = visits[(visits >= start) & (visits < ends[epoch])]
            if len(inside) and not (arm == "c" and epoch == 1):
                exposures.append(Exposure("e", f"u{i}", arm, 1, float(inside[0]), "v", epochs[epoch]))
        outcomes += [Outcome("e", f"{i}-{k}", f"u{i}", "spent", 1.0, at) for k, at in enumerate(visits)]
    store.add_exposures(exposures)
    record(store, outcomes)
    report = analyse(store, spec(store, config, 40.0), 40.0)
    assert not report.sample_ratio.alarm
    found = report.arms[1].metrics[0]
    assert found.control_units == pytest.approx(found.units, rel=0.03)
    assert found.relative == pytest.approx(0, abs=0.05)
    assert found.relative_low is not None
    assert found.relative_low < 0 < found.relative_high  # type: ignore[operator]


def test_a_stop_and_a_resumption_lose_only_what_happened_between(store: Store) -> None:
    config = experiment("control", "b")
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
    found = aggregates.measure(store, "e", Metric(name="clicks"), 400.0, during).moments["control"]
    assert found.units == 2
    assert float(found.mean[0] * 2) == pytest.approx(1101 + 1001)  # the high one was off until 300
