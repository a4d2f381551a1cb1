"""Units that lose their arm for a while: what they do meanwhile comes from the default."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.buckets import NO_BUCKET
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.events import Exposure, Outcome
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.log import Declared, Entry
from headroom.service.experiments.measure import comparisons, measure
from headroom.service.experiments.store import Store
from tests.service.experiments.making import act, experiment, in_log, live_of, send

SPENT = Metric(name="spent", margin=0.05)
UNITS = {"near": (10, 5010, 100), "far": (4990, 9990, 9900), "chosen": (NO_BUCKET, NO_BUCKET, None)}
"""By name, the bucket of such a unit in control and in pruned, and its slot."""


def declared(**more: Any) -> ExperimentConfig:
    return experiment(metrics=[SPENT], **more)


class World:
    """A database, and replicas on one clock. Outcomes have the values 1, 10, 100 and so on, one a period."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = 0.0
        self.value = 1.0

    def replica(self, *configs: ExperimentConfig, store: Store | None = None) -> LiveExperiments:
        """Start one with this config."""
        live = live_of(store or self.store, clock=lambda: self.now)
        self.edit(live, *configs)
        return live

    @staticmethod
    def edit(live: LiveExperiments, *configs: ExperimentConfig, **more: Any) -> None:
        live.apply(configs, repr(configs), **more)

    def expose(self) -> None:
        """Each arm has one unit of each name."""
        for index, arm in enumerate(("control", "pruned")):
            rows = [
                Exposure("prune20", f"{arm} {name}", arm, UNITS[name][index], 1.0, "v", UNITS[name][2])
                for name in UNITS
            ]
            self.store.add(rows)

    def behave(self) -> None:
        """Each unit spends ten times what it spent in the last period, in its middle."""
        rows = []
        for unit in [f"{arm} {name}" for arm in ("control", "pruned") for name in UNITS]:
            row_id = f"{unit} {self.value}"
            rows.append(Outcome("prune20", row_id, unit, "spent", self.value, self.now + 50))
        send(self.store, rows, [declared()])
        self.value *= 10
        self.now += 100

    def spent(self, metric: Metric = SPENT) -> float:
        """What the units of an arm spent together, as far as it counts; both arms spent the same."""
        during = comparisons(in_log(self.store))["pruned"]
        moments = measure(self.store, "prune20", metric, self.now, during).moments
        totals = {arm: moments[arm].mean[0] * moments[arm].units for arm in ("control", "pruned")}
        assert totals["control"] == pytest.approx(totals["pruned"])
        return float(totals["control"])


@pytest.fixture
def world(file_store: Store) -> World:
    return World(file_store)


@pytest.mark.parametrize("is_restart", [False, True])
def test_a_config_counts_alike_whether_an_edit_or_a_restart_brought_it(
    world: World, *, is_restart: bool
) -> None:
    """A restart without an experiment was in no log: 92 and 99 were counted in place of 5 and 11."""
    live = world.replica(declared())
    world.expose()
    world.behave()
    counted = 3.0
    near_and_chosen = declared(traffic=0.1, slots=(0, 5000))
    for configs, units in (((near_and_chosen,), 2), ((declared(),), 3), ((), 0), ((declared(),), 3)):
        if is_restart:
            live = world.replica(*configs)
        else:
            world.edit(live, *configs)
        counted += units * world.value
        world.behave()
        assert world.spent() == pytest.approx(counted)
    # What a person ramped to stays whatever the file says.
    world.store.append(act("ramp", world.now, traffic=0.1))
    world.edit(live, declared(traffic=0.5))
    counted += 2 * world.value
    world.behave()
    assert world.spent() == pytest.approx(counted)
    assert live.ledger.experiments["prune20"].traffic == 0.1
    assert len(in_log(world.store).history) == 7


def test_replicas_and_restarts_with_one_config_add_one_row(world: World) -> None:
    for _ in range(3):
        world.replica(declared())
    assert [entry.kind for entry in world.store.log()] == ["config"]


class MayBeAway(Store):
    """A database that a test takes away."""

    is_away = False

    def _opened(self, transaction: Any) -> Any:
        if self.is_away:
            raise DatabaseUnavailable
        return super()._opened(transaction)


def test_edits_while_the_database_is_away_are_added_with_their_times(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with closing(MayBeAway(url)) as one, closing(MayBeAway(url)) as other, closing(Store(url)) as reader:
        world = World(reader)
        first = world.replica(declared(), store=one)
        second = world.replica(declared(), store=other)
        world.expose()
        world.behave()
        one.is_away = other.is_away = True
        for live in (first, second):
            world.edit(live)
            assert not live.ledger.in_force.assigner.experiments, "it is out here at once"
        world.behave()
        for live in (first, second):
            world.edit(live, declared())
        world.behave()
        one.is_away = other.is_away = False
        for live in (first, second, first):
            live.ledger.refresh()
        assert [entry.time for entry in reader.log()] == [0, 100, 200]
        assert world.spent() == pytest.approx(3 + 0 + 300)


def test_a_late_edit_does_not_undo_one_that_came_after_it(tmp_path: Path) -> None:
    """One replica was cut off from the database, and had nothing to say when it came back."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with closing(MayBeAway(url)) as cut_off, closing(Store(url)) as store:
        world = World(store)
        first = world.replica(declared(), store=cut_off)
        second = world.replica(declared())
        cut_off.is_away = True
        world.now = 10.0
        world.edit(first, declared(traffic=0.1))
        world.now = 20.0
        world.edit(second, declared(traffic=0.5))
        cut_off.is_away = False
        world.now = 30.0
        first.ledger.refresh()
        assert [entry.time for entry in store.log()] == [0, 20]
        assert first.ledger.experiments["prune20"].traffic == 0.5


def test_the_operator_is_told_once_what_a_config_takes_out_or_pauses(world: World) -> None:
    free = declared(name="free", salt="free", slots=(0, 5000))
    world.replica(declared(slots=(5000, 10_000)))
    world.store.append(Entry("start", 1.0, experiment="free", declared=Declared((free,))))
    live = live_of(world.store)
    told: list[str] = []
    live.metrics.notify_operator = told.append
    world.edit(live, declared(name="other", salt="o", slots=(4000, 5000)))
    assert told == [
        "the experiment 'prune20' is paused, and its units get the default: the config in force does not "
        "declare it; change the config, or stop 'prune20'",
        "the experiment 'free' is paused, and its units get the default: slots: [0, 5000) overlaps [4000, "
        "5000) of 'other'; change the config, or stop 'free'",
    ]
    live.ledger.refresh()
    assert len(told) == 2


def test_a_restored_database_is_read_anew(world: World) -> None:
    live = world.replica(declared())
    world.store.append(act("stop", 5.0))
    live.ledger.refresh()
    assert live.ledger.experiments["prune20"].status == "stopped"
    with world.store.write() as db:  # as the backup of before the stop has it
        db.exec_driver_sql("DELETE FROM log WHERE kind = 'stop'")
    live.ledger.refresh()
    assert live.ledger.experiments["prune20"].is_running


def test_a_unit_of_two_arms_counts_in_none_and_is_told(world: World) -> None:
    """It counted in the first, and what it did under both said something about that one."""
    world.replica(declared())
    world.expose()
    world.store.add([Exposure("prune20", "control near", "pruned", NO_BUCKET, 30.0, "v")])
    world.behave()
    report = analyse(world.store, in_log(world.store), world.now, {})
    assert report.in_both_arms == 1
    assert report.exposures == {"control": 2, "pruned": 3}
    assert "1 unit was sent to more than one arm, and left out." in report.text
    (metric,) = report.arms[0].metrics
    assert (metric.control_units, metric.units) == (2, 3)
