"""What `outcome_days` deletes: only what the log has as over, and only after its report was kept."""

from contextlib import closing

import pytest
from sqlalchemy import func, select

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments import tables
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import Click, Exposure, Outcome
from headroom.service.experiments.live import LiveExperiments
from headroom.service.experiments.log import fold
from headroom.service.experiments.retention import Retention
from headroom.service.experiments.store import Store
from tests.service.experiments.making import act, experiment, in_log, live_of, send

DAY = 86_400.0
CONFIG = experiment(metrics=[{"name": "click", "kind": "proportion", "margin": 0.1}])
OTHER = experiment(name="other", salt="other", metrics=[{"name": "click"}])


class Clock:
    """The time of a test."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(Store, "not_ahead", lambda _, now: now)
    return Clock()


def replica(store: Store, clock: Clock, *configs: ExperimentConfig, version: str = "v") -> LiveExperiments:
    live = live_of(store, clock=clock, monotonic=clock)
    live.apply(configs, version)
    return live


def fill(store: Store, name: str = "prune20") -> None:
    """Sixty units of two arms, with an outcome each of the first day."""
    arms = ("control", "pruned")
    store.add([Exposure(name, f"u{n}", arms[n % 2], 1, 10.0, "v") for n in range(60)])
    rows = [Outcome(name, f"o{n}", f"u{n}", "click", 1.0, 20.0) for n in range(60)]
    assert send(store, rows, [CONFIG, experiment(name=name)]).accepted == 60


def left(store: Store, name: str = "prune20") -> int:
    with store.read() as db:
        query = select(func.count()).select_from(tables.outcomes).where(tables.outcomes.c.experiment == name)
        return int(db.scalars(query).one())


def tend(live: LiveExperiments, looks: int = 5) -> None:
    """Let a replica's retention look often enough for everything."""
    retention = Retention(live.ledger, outcome_days=30.0)
    for _ in range(looks):
        retention.look()
    live.ledger.refresh()


def test_the_report_of_one_that_is_over_stays_when_its_rows_go(store: Store, clock: Clock) -> None:
    live = replica(store, clock, CONFIG)
    fill(store)
    clock.now = DAY
    store.append(act("stop", clock.now))
    tend(live, looks=2)
    late = Outcome("prune20", "late", "u1", "click", 1.0, 30.0)
    assert send(store, [late], [CONFIG]).accepted == 1
    live = replica(store, clock, version="without")  # whether the config still has it makes no difference
    clock.now = 30 * DAY
    tend(live)
    assert left(store) == 61
    clock.now = 31.5 * DAY
    tend(live)
    assert left(store) == 0
    found = in_log(store)
    assert [action.kind for action in found.history][:3] == ["start", "stop", "delete"]
    report = analyse(store, found, clock.now)
    assert report.time == clock.now, "the one before the deletion"
    assert report.arms[0].metrics[0].units == 30
    assert "Outcomes were deleted from" in (report.retention or "")
    clock.now += DAY
    tend(live)
    assert analyse(store, in_log(store), clock.now) == analyse(store, found, clock.now)


def test_without_a_report_nothing_is_deleted_and_the_operator_is_told(
    file_store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = replica(file_store, clock, CONFIG)
    fill(file_store)
    file_store.append(act("stop", DAY))
    live.ledger.refresh()
    told: list[str] = []
    live.metrics.notify_operator = told.append

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as broken:
        broken.setattr("headroom.service.experiments.retention.analyse", fail)
        clock.now += 60 * DAY
        tend(live)
    assert left(file_store) == 60
    assert told
    assert all("could not be made, so its outcomes stay: a defect" in line for line in told)
    tend(live)
    assert left(file_store) == 0


def test_a_database_that_fails_before_the_deletion_loses_no_outcome_from_the_last_report(
    file_store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of the failed try was kept, so an outcome that came after it was deleted uncounted."""
    live = replica(file_store, clock, CONFIG)
    fill(file_store)
    file_store.append(act("stop", DAY))
    live.ledger.refresh()
    clock.now = 32 * DAY

    def fail(*_: object) -> None:
        raise DatabaseUnavailable

    with monkeypatch.context() as broken:
        broken.setattr("headroom.service.experiments.store._row_of", fail)
        with pytest.raises(DatabaseUnavailable):
            tend(live, looks=1)
    assert file_store.final_report("prune20") is None
    file_store.add([Exposure("prune20", "late", "pruned", 1, 10.0, "v")])
    tend(live)
    assert left(file_store) == 0
    assert analyse(file_store, in_log(file_store), clock.now).exposures == {"control": 30, "pruned": 31}


def test_a_later_ship_keeps_the_rows_for_longer(file_store: Store, clock: Clock) -> None:
    live = replica(file_store, clock, CONFIG)
    fill(file_store)
    for entry in (
        act("ship", DAY, arm="pruned"),
        act("rollback", 10 * DAY),
        act("ship", 20 * DAY, arm="pruned"),
    ):
        file_store.append(entry)
    live.ledger.refresh()
    for day, rows in ((49, 60), (51, 0)):
        clock.now = day * DAY
        tend(live)
        assert left(file_store) == rows


def test_clicks_on_no_list_count_and_stay_only_for_experiments_that_ran_then(
    store: Store, clock: Clock
) -> None:
    """A shop that sends all of its clicks filled the last report of an experiment that was over."""
    first, second = (
        experiment(name=name, salt=name, kind="interleave", metrics=[{"name": "click"}])
        for name in ("first", "second")
    )
    live = replica(store, clock, first)
    store.append(act("stop", DAY, "first"))
    clock.now = 10 * DAY
    live.apply((second,), "second")
    clicks = [Click("", f"{day}", "u", "click", f"q{day}", 1.0, day * DAY, rank=1) for day in (0.5, 5, 11)]
    assert send(store, clicks, [first, second]).accepted == 3
    configs = fold(store.log())
    found = {name: analyse(store, each, clock.now).unmatched for name, each in configs.items()}
    assert found == {"first": {"impression": 1}, "second": {"impression": 1}}
    clock.now = 40 * DAY
    tend(live)
    with store.read() as db:
        assert [row.id for row in db.execute(tables.clicks.select())] == ["11"]


def test_another_service_on_the_database_changes_nothing_of_the_first(url: str, clock: Clock) -> None:
    """Within 1.4 s, it deleted the outcomes of the first one's experiment, and set its traffic."""
    with closing(Store(url, "production")) as mine, closing(Store(url, "staging")) as other:
        replica(mine, clock, CONFIG)
        fill(mine)
        mine.append(act("stop", 0.0))
        clock.now = 40 * DAY
        for config in (OTHER, CONFIG.model_copy(update={"traffic": 0.1})):
            live = replica(other, clock, config, version="staging")
            assert "belongs to the service 'production'" in (other.incompatible or "")
            assert live.ledger.assigner.assign("u0") is None
            with pytest.raises(DatabaseUnavailable):
                send(other, [Outcome("other", "o", "u0", "click", 1.0, 20.0)], [OTHER])
            tend(live)
        assert [entry.kind for entry in mine.log()] == ["config", "stop"]
        assert left(mine) == 60
