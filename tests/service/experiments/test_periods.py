"""What edits, restarts and a database that is away leave in the log, and so in the periods of the arms."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.log import Declared, Entry
from headroom.service.experiments.store import Store
from tests.service.experiments.making import act, experiment, live_of


class World:
    """A database, and replicas on one clock."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = 0.0

    def replica(self, *configs: ExperimentConfig, store: Store | None = None) -> LiveExperiments:
        """Start one with this config."""
        live = live_of(store or self.store, clock=lambda: self.now)
        self.edit(live, *configs)
        return live

    @staticmethod
    def edit(live: LiveExperiments, *configs: ExperimentConfig, **more: Any) -> None:
        live.apply(configs, repr(configs), **more)


@pytest.fixture
def world(file_store: Store) -> World:
    return World(file_store)


def test_replicas_and_restarts_with_one_config_add_one_row(world: World) -> None:
    for _ in range(3):
        world.replica(experiment())
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
        first = world.replica(experiment(), store=one)
        second = world.replica(experiment(), store=other)
        one.is_away = other.is_away = True
        world.now = 100.0
        for live in (first, second):
            world.edit(live)
            assert not live.ledger.in_force.assigner.experiments, "it is out here at once"
        world.now = 200.0
        for live in (first, second):
            world.edit(live, experiment())
        world.now = 300.0
        one.is_away = other.is_away = False
        for live in (first, second, first):
            live.ledger.refresh()
        assert [entry.time for entry in reader.log()] == [0, 100, 200]


def test_a_late_edit_does_not_undo_one_that_came_after_it(tmp_path: Path) -> None:
    """One replica was cut off from the database, and had nothing to say when it came back."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with closing(MayBeAway(url)) as cut_off, closing(Store(url)) as store:
        world = World(store)
        first = world.replica(experiment(), store=cut_off)
        second = world.replica(experiment())
        cut_off.is_away = True
        world.now = 10.0
        world.edit(first, experiment(traffic=0.1))
        world.now = 20.0
        world.edit(second, experiment(traffic=0.5))
        cut_off.is_away = False
        world.now = 30.0
        first.ledger.refresh()
        assert [entry.time for entry in store.log()] == [0, 20]
        assert first.ledger.experiments["prune20"].traffic == 0.5


def test_the_operator_is_told_once_what_a_config_takes_out_or_pauses(world: World) -> None:
    free = experiment(name="free", salt="free", slots=(0, 5000))
    world.replica(experiment(slots=(5000, 10_000)))
    world.store.append(Entry("start", 1.0, experiment="free", declared=Declared((free,))))
    live = live_of(world.store)
    told: list[str] = []
    live.metrics.notify_operator = told.append
    world.edit(live, experiment(name="other", salt="o", slots=(4000, 5000)))
    assert told == [
        "the experiment 'prune20' is paused, and its units get the default: the config in force does not "
        "declare it; change the config, or stop 'prune20'",
        "the experiment 'free' is paused, and its units get the default: slots: [0, 5000) overlaps [4000, "
        "5000) of 'other'; change the config, or stop 'free'",
    ]
    live.ledger.refresh()
    assert len(told) == 2


def test_a_restored_database_is_read_anew(world: World) -> None:
    live = world.replica(experiment())
    world.store.append(act("stop", 5.0))
    live.ledger.refresh()
    assert live.ledger.experiments["prune20"].status == "stopped"
    with world.store.write() as db:  # as the backup of before the stop has it
        db.exec_driver_sql("DELETE FROM log WHERE kind = 'stop'")
    live.ledger.refresh()
    assert live.ledger.experiments["prune20"].is_running
