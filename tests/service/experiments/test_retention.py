"""What is deleted, when, and that the last report stays and none gives figures of a part of the rows."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import analysis
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.definition import INTERLEAVED, ExperimentConfig
from headroom.service.experiments.estimates import Boundary
from headroom.service.experiments.events import Action, Exposure, Impression, Log, Outcome, SentClick
from headroom.service.experiments.final_reports import TRIES, FinalReports
from headroom.service.experiments.interleaving import impression_id
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.report import Look, Report
from headroom.service.experiments.retention import DAY_SECONDS as DAY
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import early_clicks, impressions, outcomes
from headroom.service.experiments.upkeep import Upkeep
from headroom.service.observe.metrics import Metrics
from tests.service.experiments.making import experiment

SPENT = experiment(metrics=[{"name": "spent", "margin": 2.0, "relative": False}], planned_units=600)
ORDER = experiment(name="order", kind="interleave", metrics=[{"name": "click"}])


class World:
    """A database, one replica, its upkeep, and a clock."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = 0.0
        self.ledger = Ledger(store, Metrics(), clock=lambda: self.now, monotonic=lambda: self.now)

    def apply(self, *configs: ExperimentConfig) -> None:
        self.ledger.apply(configs, repr(configs))

    def act(self, name: str, kind: Any, **more: Any) -> None:
        self.store.record_action(Action(name, kind, self.now, "boss", **more))
        self.ledger.refresh()

    def look_after(self, outcome_days: float = 30) -> None:
        """One look of the upkeep for what is too old."""
        self.ledger.refresh()
        Upkeep(self.ledger, outcome_days).delete()
        self.ledger.refresh()

    def report(self, config: ExperimentConfig = SPENT) -> Report:
        log = self.ledger.history(config.name)
        return analyse(self.store, config, log, self.now, {}, kept_days=30)

    def rows(self, table: Any) -> int:
        with self.store.read() as db:
            return int(db.scalar(select(func.count()).select_from(table)) or 0)


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def figures(report: Report) -> Any:
    """The only metric's figures. PostgreSQL adds numbers up in any order, so the last digits differ."""
    (found,) = report.arms[0].metrics
    numbers = [found.value, found.control_value, found.difference, found.low, found.high]
    rounded = [f"{number:.9g}" for number in numbers if number is not None]
    return found.decision, found.units, found.control_units, rounded


def fill(world: World, days: float) -> None:
    """Units come over some days. Truth: control's spend 30, the treatment's 24; the margin is 2."""
    n = 600
    rng = np.random.default_rng(1)
    arm = np.arange(n) % 2
    exposed = np.sort(rng.uniform(0, days * DAY, n))
    units = [
        Exposure("prune20", f"u{i}", ("control", "pruned")[arm[i]], 5000 * int(arm[i]), exposed[i], "v")
        for i in range(n)
    ]
    world.store.add_exposures(units)
    spent = rng.normal(30, 5, n) - 6 * arm
    world.store.record_outcomes(
        [Outcome("prune20", f"{i}", f"u{i}", "spent", float(spent[i]), exposed[i] + 10) for i in range(n)],
        [SPENT],
    )
    world.now = days * DAY


def run_to_end(world: World) -> None:
    """Run the experiment for 60 days, and stop it."""
    world.apply(SPENT)
    fill(world, days=60)
    world.act("prune20", "stop")


def test_the_verdict_after_the_end_is_that_of_the_end_also_once_everything_is_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes after the end, units whose outcomes were deleted counted as 0, and the verdict changed."""
    monkeypatch.setattr("headroom.service.experiments.store.DELETED_AT_ONCE", 250)
    run_to_end(world)
    at_end = world.report()
    (found,) = at_end.arms[0].metrics
    assert (at_end.recommendation, found.decision, at_end.retention) == ("stop", "too_bad", None)
    for days in (0.01, 1, 29.9):
        world.now = (60 + days) * DAY
        world.look_after()
        assert figures(world.report()) == figures(at_end)
        assert world.report().retention is None, "nothing is deleted yet"
    world.now = 90.1 * DAY
    for left in (350, 100, 0):
        world.look_after()
        assert world.rows(outcomes) == left
        kept = world.report()
        assert figures(kept) == figures(at_end)
        assert replace(kept, time=at_end.time, arms=at_end.arms, looks=at_end.looks, retention=None) == at_end
        assert [look.time for look in kept.looks] == [look.time for look in at_end.looks]
        assert kept.retention == (
            "Outcomes were deleted from 1970-04-01 02:24 UTC on, because the experiment ended longer than "
            "outcome_days before. The figures are those of 1970-04-01 02:24 UTC."
        )
    assert len(at_end.looks) > 10
    assert [each.kind for each in world.ledger.history("prune20")] == ["start", "stop", "delete"]


def test_without_its_last_report_an_experiment_whose_outcomes_are_deleted_has_no_figures(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a release that kept none, and if what was kept lacks a value of this release."""
    run_to_end(world)
    at_end = world.report()
    moment = world.now
    world.now += 31 * DAY
    world.store.delete_before(moment + DAY, [], world.now)
    world.ledger.refresh()
    gone = world.report()
    assert (gone.recommendation, gone.arms, gone.looks) == ("invalid", [], [])
    assert "Outcomes were deleted" in (gone.retention or "")
    # Another replica may have begun to compute it before, and end now.
    world.store.keep_final_report("prune20", at_end.as_json())
    assert world.report() == gone
    monkeypatch.setattr(world.store, "final_report", lambda _: '{"experiment": "prune20"}')
    assert world.report() == gone


def timeout() -> DatabaseUnavailable:
    """As `Store` raises it."""
    error = DatabaseUnavailable()
    error.__cause__ = OperationalError(
        "SELECT", {}, Exception("canceling statement due to statement timeout")
    )
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (timeout(), "canceling statement due to statement timeout"),
        (ZeroDivisionError("a fault of ours"), "a fault of ours"),
    ],
)
def test_a_last_report_that_cannot_be_made_is_tried_for_fifty_minutes(
    world: World, error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what somebody's rules ask for comes first: the rows go."""
    told: list[str] = []
    monkeypatch.setattr(world.ledger.metrics, "notify_operator", told.append)
    run_to_end(world)
    world.now += 31 * DAY
    began = world.now

    def fail(*_: object, **__: object) -> Report:
        raise error

    monkeypatch.setattr("headroom.service.experiments.final_reports.analyse", fail)
    upkeep = Upkeep(world.ledger, outcome_days=30)
    with monkeypatch.context() as outage:
        outage.setattr(world.store, "final_report", lambda _: fail())
        for _ in range(20):
            with pytest.raises(type(error)):
                upkeep.delete()
            world.now += 1
    while world.rows(outcomes):
        assert world.now < began + 2 * 3600
        upkeep.delete()
        world.now += 1
    assert world.now == began + 20 + 5 * 600 + 1, "an outage counts as no try"
    (line,) = told
    assert line.startswith("the experiment 'prune20' will have no report, ")
    assert reason in line


def test_the_last_try_keeps_the_figures_without_the_looks_that_fail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_to_end(world)
    at_end = world.report()
    computed = analysis.past_look
    calls: list[float] = []

    def fail_in_the_end(store: Store, config: ExperimentConfig, actions: Log, moment: float) -> Look:
        calls.append(moment)
        if len(calls) > 3:
            raise timeout()
        return computed(store, config, actions, moment)

    monkeypatch.setattr(analysis, "past_look", fail_in_the_end)
    reports = FinalReports(world.store, lambda _: None, lambda: world.now)
    history = world.ledger.history("prune20")
    tries = []
    for _ in range(TRIES):
        tries.append(reports.keep(SPENT, history, world.now))
        world.now += 600
    assert tries == [*[False] * (TRIES - 1), True]
    kept = Report.from_json(world.store.final_report("prune20") or "")
    assert figures(kept) == figures(at_end)
    assert [look.time for look in kept.looks] == calls[:3]


def test_a_node_whose_clock_runs_ahead_deletes_nothing_of_the_others(store: Store) -> None:
    """Its year of difference deleted the outcomes of every experiment that had ended, and early clicks."""
    sent = SentClick("order", "c", "u", "click", "", 1.0, 0.0, 1)
    worlds = []
    for ahead in (0, 365 * DAY):
        world = World(store)
        world.ledger.clock = lambda ahead=ahead: time.time() + ahead  # type: ignore[misc]
        world.apply(SPENT, ORDER)
        worlds.append(world)
    right, wrong = worlds
    store.record_outcomes([Outcome("prune20", "1", "u", "spent", 1.0, time.time())], [SPENT])
    shown_later = replace(sent, impression=impression_id(store.impression_key(), "order", "u"))
    assert store.record_outcomes([shown_later], [ORDER]).accepted == 1
    store.record_action(Action("prune20", "stop", time.time(), "boss"))
    for world in (right, wrong):
        world.look_after()
        Upkeep(world.ledger, 30).settle()
        store.preferences(ORDER, ORDER.metrics[0], math.inf, world.ledger.clock())
        assert (world.rows(outcomes), world.rows(early_clicks)) == (1, 1)


def test_a_clock_that_is_set_back_does_not_keep_outcomes_for_longer(world: World) -> None:
    """The next try to make a last report was put off until the clock had caught up."""
    seconds = 0.0
    reports = FinalReports(world.store, lambda _: None, lambda: seconds)
    run_to_end(world)
    broken = SPENT.model_copy(update={"metrics": None})
    assert not reports.keep(broken, world.ledger.history("prune20"), world.now)
    seconds = 601.0
    assert reports.keep(SPENT, world.ledger.history("prune20"), world.now - 3600)
    assert world.store.final_report("prune20") is not None


async def test_early_clicks_wait_for_no_report(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headroom.service.experiments.upkeep.LOOK_SECONDS", 0.01)
    world.apply(SPENT)
    upkeep = Upkeep(world.ledger, outcome_days=30)
    is_made = threading.Event()
    settled: list[float] = []
    monkeypatch.setattr(upkeep, "delete", is_made.wait)
    monkeypatch.setattr(upkeep, "settle", lambda: settled.append(world.now))
    running = asyncio.create_task(upkeep.run())
    try:
        async with asyncio.timeout(30):
            while len(settled) < 3:
                await asyncio.sleep(0.01)
        assert not is_made.is_set()
    finally:
        is_made.set()
        running.cancel()


async def test_clicks_without_a_list_do_not_outlive_their_experiment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headroom.service.experiments.upkeep.LOOK_SECONDS", 0.01)
    world.apply(ORDER)
    key = world.store.impression_key()
    its_list = impression_id(key, "order", "u1")
    click = SentClick("order", "c1", "u1", "click", its_list, 1.0, 0.0, index=0)
    assert world.store.record_outcomes([click], [ORDER], now=0.0).accepted == 1
    assert world.rows(early_clicks) == 1
    world.apply()
    world.now = 3601.0
    running = asyncio.create_task(Upkeep(world.ledger, outcome_days=30).run())
    try:
        async with asyncio.timeout(30):
            while world.rows(early_clicks):
                await asyncio.sleep(0.01)
    finally:
        running.cancel()


def test_a_report_of_a_long_experiment_rests_on_all_of_its_lists(world: World) -> None:
    world.apply(ORDER)
    key = world.store.impression_key()
    for day in range(100):
        shown = Impression(
            "order", impression_id(key, "order", f"u{day}"), f"u{day}", day * DAY, "v", "tc", (0, 1)
        )
        world.store.add_exposures([Exposure("order", f"u{day}", INTERLEAVED, 1, day * DAY, "v")])
        world.store.add_impressions([shown])
    world.now = 100 * DAY
    world.look_after()
    assert world.rows(impressions) == 100
    report = world.report(ORDER)
    (found,) = report.arms[0].metrics
    assert found.preference is not None
    assert (found.preference.impressions, report.retention) == (100, None)
    world.act("order", "stop")
    world.now = 129 * DAY
    world.look_after()
    assert world.rows(impressions) == 100
    world.now = 131 * DAY
    world.look_after()
    assert world.rows(impressions) == 0
    kept = world.report(ORDER)
    assert kept.arms == report.arms
    assert "Lists and clicks were deleted" in (kept.retention or "")


def test_an_experiment_that_an_edit_takes_out_for_a_while_keeps_its_outcomes(world: World) -> None:
    world.apply(SPENT, ORDER)
    fill(world, days=60)
    before = world.report()
    world.apply(ORDER)
    world.now += DAY
    world.look_after()
    world.apply(SPENT, ORDER)
    assert figures(world.report()) == figures(before)
    world.apply(ORDER)
    world.now += 31 * DAY
    world.look_after()
    assert world.rows(outcomes) == 0
    world.apply(SPENT, ORDER)
    assert (world.report().recommendation, world.report().arms) == ("invalid", [])


def wrong_at_some_look(kept: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return how often some look's 95 % interval misses a truth of 0, if a look has all units from `kept` on.

    1,000 experiments of 12 periods of 100 looks each; the plan is one period.
    """
    rng = np.random.default_rng(0)
    looks = np.arange(1, 1201)
    sums = np.zeros((1000, 1201))
    sums[:, 1:] = np.cumsum(rng.normal(0, 0.1, (1000, 1200)), 1)
    units = (looks - kept(looks)) / 100
    z = np.abs(sums[:, looks] - sums[:, kept(looks)]) / np.sqrt(units)
    return float((z > Boundary(0.05, 1.0).multiplier(units)).any(1).mean())


def test_intervals_hold_at_any_time_on_all_lists_and_not_on_those_of_a_sliding_window() -> None:
    """Why lists of a running experiment stay."""
    assert wrong_at_some_look(lambda looks: np.zeros_like(looks)) <= 0.05
    assert wrong_at_some_look(lambda looks: np.maximum(looks - 100, 0)) > 0.1
