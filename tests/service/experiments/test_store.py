"""The experiments' database, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, func, select, text

from service.errors import DatabaseUnavailable
from service.experiments.definition import Metric
from service.experiments.events import Action, Exposure, Outcome, OutcomeReceipt, ShadowResult
from service.experiments.histogram import histogram, quantile
from service.experiments.measure import measure
from service.experiments.schema import exposures, metadata, outcomes
from service.experiments.shadow import shadow_reports
from service.experiments.store import Store
from tests.service.experiments.making import ALWAYS, units

ONE, TWO, THREE, NINE = "0.1 ", "0.2 ", "0.3 ", "0.9 "


def exposure(
    unit: str, arm: str = "control", *, experiment: str = "prune20", time: float = 100.0, epoch: str = ""
) -> Exposure:
    return Exposure(experiment, unit, arm, bucket=7, time=time, config_version="abc", epoch=epoch)


def outcome(
    number: int, unit: str, *, experiment: str = "prune20", metric: str = "clicks", time: float = 200.0
) -> Outcome:
    return Outcome(experiment=experiment, id=f"o{number}", unit=unit, metric=metric, value=1.0, time=time)


def counts(receipt: OutcomeReceipt) -> tuple[int, int, int, int]:
    return receipt.accepted, receipt.duplicates, receipt.unknown, receipt.pending


def at_once(*work: Callable[[], object]) -> None:
    """Runs all at the same time and fails if one does."""
    failures: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_the_first_exposure_of_a_unit_stays(store: Store) -> None:
    assert store.add_exposures([exposure("a"), exposure("b"), exposure("a", "pruned")]) == 2
    assert store.add_exposures([exposure("a", "pruned"), exposure("c", "pruned")]) == 1
    assert units(store, "prune20", "other") == {
        "prune20": {"control": 2, "pruned": 1},
        "other": {},
    }
    with store.read() as db:
        arms = {row.unit: row.arm for row in db.execute(select(exposures))}
    assert arms == {"a": "control", "b": "control", "c": "pruned"}


def test_a_unit_counts_in_the_epoch_in_which_it_first_comes(store: Store) -> None:
    """Whether it comes back is an effect of its arm. Returns that counted looked like lost units."""
    first = [exposure("a", epoch=ONE), exposure("a", epoch=ONE, time=101), exposure("b", epoch=ONE)]
    assert store.add_exposures(first) == 2
    second = [exposure("a", epoch=TWO, time=300), exposure("c", "pruned", epoch=TWO, time=200)]
    both = [exposure("d", epoch=ONE, time=150), exposure("d", epoch=TWO)]
    assert store.add_exposures([*second, *both]) == 2
    assert store.add_exposures([*first, *second]) == 0
    assert store.epoch_counts(["prune20", "other"]) == {
        "prune20": {ONE: {"control": 2}, TWO: {"control": 1, "pruned": 1}},
        "other": {},
    }
    assert units(store, "prune20") == {"prune20": {"control": 3, "pruned": 1}}


def test_an_earlier_exposure_that_is_written_later_is_the_first(store: Store) -> None:
    store.add_exposures([exposure("a", time=200), exposure("b", time=200), exposure("c", time=50)])
    assert store.add_exposures([exposure(unit, time=100) for unit in ("a", "c", "d")]) == 1
    with store.read() as db:
        times = {row.unit: row.time for row in db.execute(select(exposures))}
    assert times == {"a": 100, "b": 200, "c": 50, "d": 100}


def test_the_order_in_which_replicas_write_does_not_change_what_a_unit_did_before(tmp_path: Path) -> None:
    """What units did between two exposures was taken for what they did before the treatment."""
    found = []
    for order in (1, -1):
        store = Store(f"sqlite:///{tmp_path / f'{order}.db'}")
        for time in (1000.0, 3000.0)[::order]:
            store.add_exposures([exposure(f"u{number}", time=time) for number in range(4)])
        store.record_outcomes(
            [outcome(number, f"u{number}", time=2000.0) for number in range(4)], known=["prune20"]
        )
        metric = Metric(name="clicks", covariate="clicks")
        found.append(list(measure(store, "prune20", metric, 1e6, ALWAYS).moments["control"].mean))
        store.close()
    assert found == [[1, 0, 0], [1, 0, 0]]


def test_replicas_that_write_earlier_exposures_of_the_same_units_do_not_block_each_other(url: str) -> None:
    stores = [Store(url) for _ in range(4)]
    try:
        names = [f"unit{number}" for number in range(300)]
        stores[0].add_exposures([exposure(unit, time=1000, epoch=NINE) for unit in names])
        at_once(
            *(
                lambda s=s, k=k: s.add_exposures(
                    [
                        exposure(unit, time=100 * k + number % 7, epoch=ONE)
                        for number, unit in enumerate(names[k * 20 :] + names[: k * 20])
                    ]
                )
                for k, s in enumerate(stores, 1)
            )
        )
        with stores[0].read() as db:
            assert {int(row.time) // 100 for row in db.execute(select(exposures))} == {1}
        assert stores[0].epoch_counts(["prune20"])["prune20"] == {NINE: {"control": 300}}
    finally:
        for store in stores:
            store.close()


def test_replicas_that_see_the_same_units_count_each_once(url: str) -> None:
    stores = [Store(url) for _ in range(4)]
    try:
        rows = [exposure(f"unit{i}", "control" if i % 2 else "pruned") for i in range(1200)]
        at_once(
            *(lambda s=s, k=k: s.add_exposures(rows[k * 50 :] + rows[: k * 50]) for k, s in enumerate(stores))
        )
        assert units(stores[0], "prune20") == {"prune20": {"control": 600, "pruned": 600}}
    finally:
        for store in stores:
            store.close()


def test_replicas_that_start_at_once_make_the_schema_once(url: str) -> None:
    stores = [Store(url) for _ in range(4)]
    try:
        at_once(*(store.migrate for store in stores))
        with stores[0].read() as db:
            context = MigrationContext.configure(db)
            assert context.get_current_heads() == ("tables1",)
            assert compare_metadata(context, metadata) == []
    finally:
        for store in stores:
            store.close()


@pytest.mark.parametrize("revision", ["0004", "9999"])
def test_a_database_of_another_release_is_left_alone(store: Store, url: str, revision: str) -> None:
    store.add_exposures([exposure("a")])
    with store._write() as db:
        db.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
    other = Store(url)
    try:
        with pytest.raises(DatabaseUnavailable, match=r"another release .* HEADROOM_DATABASE_URL to a new"):
            other.add_exposures([exposure("b")])
    finally:
        other.close()


def test_outcomes_are_counted_once_and_told_apart(store: Store) -> None:
    store.add_exposures([exposure("a"), exposure("b", experiment="gone")])
    batch = [outcome(1, "a"), outcome(1, "a"), outcome(2, "stranger"), outcome(3, "b", experiment="gone")]
    batch.append(outcome(4, "a", experiment="never heard of"))
    assert counts(store.record_outcomes(batch, known=["prune20"])) == (2, 1, 1, 1)
    assert counts(store.record_outcomes(batch, known=["prune20"])) == (0, 4, 1, 0)
    with store.read() as db:
        assert db.scalar(select(func.count()).select_from(outcomes)) == 3


def test_thousands_of_outcomes_in_one_batch(store: Store) -> None:
    store.add_exposures([exposure(f"u{i}") for i in range(700)])
    batch = [outcome(i, f"u{i % 1400}") for i in range(2800)]
    receipt = store.record_outcomes(batch, known=["prune20"])
    assert counts(receipt) == (1400, 0, 0, 1400)
    assert [pending.index for pending in receipt.pending_outcomes] == [
        i for i in range(2800) if i % 1400 >= 700
    ]


def test_unknown_outcomes_are_named_with_their_reason(store: Store) -> None:
    store.add_exposures([exposure("a")])
    batch = [
        outcome(1, "a"),
        outcome(2, "a", metric="clik"),
        outcome(3, "a", experiment="never heard of"),
        outcome(4, "stranger"),
        outcome(4, "stranger"),
        outcome(5, "a", metric="any", experiment="open"),
    ]
    receipt = store.record_outcomes(
        batch, known=["prune20", "open"], metrics={"prune20": {"clicks", "views"}}
    )
    assert counts(receipt) == (1, 1, 2, 2)
    assert [(found.index, found.id, found.reason) for found in receipt.unknown_outcomes] == [
        (1, "o2", "metric"),
        (2, "o3", "experiment"),
    ]
    # An experiment without metrics takes any.
    assert [(found.index, found.id) for found in receipt.pending_outcomes] == [(3, "o4"), (5, "o5")]
    assert receipt.unknown_outcomes[0].message == "'prune20' has no metric 'clik'; it has clicks, views"
    # What was not kept is no duplicate: it can be sent again once the config has the metric.
    again = store.record_outcomes(batch[1:2], known=["prune20"], metrics={"prune20": {"clik"}})
    assert counts(again) == (1, 0, 0, 0)


def test_an_outcome_waits_a_day_for_its_exposure_and_no_longer(url: str) -> None:
    now = [1000.0]
    store = Store(url, clock=lambda: now[0])
    try:
        early = [outcome(1, "late exposure"), outcome(2, "never exposed")]
        assert store.record_outcomes(early, known=["prune20"]).pending == 2
        store.add_exposures([exposure("late exposure")])
        assert store.delete_older_than(0.0) == 0
        now[0] += 86_401
        assert store.delete_older_than(0.0) == 2
        assert store.delete_older_than(0.0) == 0
        with store.read() as db:
            assert [row.unit for row in db.execute(select(outcomes))] == ["late exposure"]
    finally:
        store.close()


def test_what_a_unit_did_before_its_exposure_waits_for_it(url: str) -> None:
    """A covariate whose early values went after a day was that of some arms' units and not of others'."""
    now = [1000.0]
    store = Store(url, clock=lambda: now[0])
    try:
        history = [outcome(1, "comes late", metric="spent", time=900.0), outcome(2, "comes late", time=900.0)]
        receipt = store.record_outcomes(history, known=["prune20"], covariates={"prune20": {"spent"}})
        assert [found.message.rpartition("; ")[2] for found in receipt.pending_outcomes] == [
            "kept as what it did before one",
            "kept for a day",
        ]
        now[0] += 30 * 86_400
        assert store.delete_older_than(0.0) == 1
        store.add_exposures([exposure("comes late", time=now[0])])
        metric = Metric(name="clicks", covariate="spent")
        found = measure(store, "prune20", metric, now[0], ALWAYS).moments["control"]
        assert list(found.mean) == [0, 0, 1]
    finally:
        store.close()


def test_old_outcomes_of_units_that_never_came_go_while_the_experiment_runs(url: str) -> None:
    """Retention did not hold for people who never took part."""
    now = [1000.0]
    store = Store(url, clock=lambda: now[0])
    try:
        store.add_exposures([exposure("came", time=900.0)])
        rows = [outcome(1, "came"), outcome(2, "never"), outcome(3, "never", time=5e6)]
        store.record_outcomes(rows, known=["prune20"], covariates={"prune20": {"clicks"}})
        now[0] = 5e6
        assert store.delete_older_than(4e6, running=["prune20"]) == 0
        assert store.delete_unexposed(4e6) == 1
        assert store.delete_unexposed(4e6) == 0
        with store.read() as db:
            assert {row.id for row in db.execute(select(outcomes))} == {"o1", "o3"}
            assert [row.unit for row in db.execute(select(exposures))] == ["came"]
    finally:
        store.close()


def test_the_search_for_outcomes_of_strangers_holds_nobody_up(tmp_path: Path) -> None:
    """It read all old outcomes of a running experiment in one statement, and nobody could write meanwhile."""
    store, other = (Store(f"sqlite:///{tmp_path / 'experiments.db'}") for _ in range(2))
    try:
        store.add_exposures([exposure(f"u{number}") for number in range(23)])
        store.record_outcomes([outcome(number, f"u{number}") for number in range(23)], known=["prune20"])
        with other._write():
            assert store.delete_unexposed(500.0) == 0
        store.record_outcomes(
            [outcome(number, "never", time=300.0) for number in range(100, 115)],
            known=["prune20"],
            covariates={"prune20": {"clicks"}},
        )
        assert [store.delete_unexposed(500.0, limit=10) for _ in range(3)] == [10, 5, 0]
        with store.read() as db:
            assert db.scalar(select(func.count()).select_from(outcomes)) == 23
    finally:
        store.close()
        other.close()


def test_actions_are_recorded_all_or_none(tmp_path: Path) -> None:
    path = tmp_path / "experiments.db"
    store = Store(f"sqlite:///{path}")
    store.migrate()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "CREATE TRIGGER no BEFORE INSERT ON actions WHEN NEW.kind = 'ramp' "
            "BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    try:
        with pytest.raises(Exception, match="no"):
            store.act(
                "prune20",
                lambda _: [
                    Action("prune20", "reinstate", 1.0, "operator", arm="pruned"),
                    Action("prune20", "ramp", 1.0, "operator", traffic=0.05),
                ],
            )
        assert store.actions(["prune20"]) == []
    finally:
        store.close()


def test_retention_deletes_in_small_chunks_and_keeps_counts_and_actions(store: Store) -> None:
    store.add_exposures([exposure(f"old{i}", time=100.0) for i in range(25)] + [exposure("new", time=900.0)])
    store.record_outcomes(
        [outcome(i, f"old{i}", time=120.0) for i in range(25)] + [outcome(99, "new", time=950)]
    )
    store.add_shadow([ShadowResult("prune20", "pruned", 100.0, 0.1, (0.1,))])
    store.record_action(Action("prune20", "start", 100.0, "operator"))
    rounds = []
    while removed := store.delete_older_than(500.0, limit=10):
        rounds.append(removed)
    assert rounds == [21, 20, 10]
    with store.read() as db:
        assert [row.unit for row in db.execute(select(exposures))] == ["new"]
        assert [row.unit for row in db.execute(select(outcomes))] == ["new"]
    assert units(store, "prune20") == {"prune20": {"control": 26}}
    assert len(store.actions(["prune20"])) == 1


def test_no_statement_of_the_running_service_reads_a_whole_table(tmp_path: Path) -> None:
    """SQLite's plans: without the right index an analysis took the square of the units' number."""
    path = tmp_path / "plans.db"
    store = Store(f"sqlite:///{path}", clock=lambda: 1e9)
    statements: list[tuple[str, Sequence[object]]] = []
    store.migrate()

    @event.listens_for(store._engine, "before_cursor_execute")
    def keep(_c: object, _k: object, statement: str, parameters: Sequence[object], *_: object) -> None:
        statements.append((statement, parameters))

    try:
        store.add_exposures([exposure(f"u{i}") for i in range(3)])
        store.record_outcomes([outcome(i, f"u{i}") for i in range(5)], known=["prune20"])
        store.add_exposures([exposure(f"u{i}", time=50.0, epoch=TWO) for i in range(3)])
        store.delete_older_than(5.0)
        store.delete_older_than(5.0, running=["prune20"])
        store.delete_unexposed(1000.0)
        for metric in (Metric(name="clicks"), Metric(name="a", kind="ratio", denominator="b", covariate="a")):
            measure(store, "prune20", metric, 1e6, ALWAYS)
    finally:
        store.close()
    plain = [s for s in statements if s[0].startswith(("SELECT", "DELETE", "UPDATE"))]
    assert len(plain) >= 10
    with closing(sqlite3.connect(path)) as db:
        for statement, parameters in plain:
            for *_, step in db.execute(f"EXPLAIN QUERY PLAN {statement}", parameters):
                for table in ("outcomes", "exposures", "shadow_results"):
                    assert f"SCAN {table}" not in step, statement
                assert "outcomes USING PRIMARY KEY (experiment=?)" not in step, statement


def test_actions_come_back_in_order_and_an_experiment_starts_once(store: Store) -> None:
    start = Action("prune20", "start", 1.0, "replica")
    first = store.record_action(start)
    at_once(*(lambda: store.record_action(start) for _ in range(4)))
    rollback = Action(
        "prune20", "rollback", 2.0, "guardrail", arm="pruned", reason="error_rate", detail="3 %"
    )
    store.record_action(Action("other", "ramp", 1.5, "operator", traffic=0.25))
    store.record_action(rollback)
    log = store.actions(["prune20"])
    assert [action for _, action in log] == [start, rollback]
    assert log[0][0] == first
    assert [action.traffic for _, action in store.actions(["prune20", "other"])] == [None, 0.25, None]
    assert store.actions([]) == []


def test_p99_of_shadow_differences_is_over_all_pairs(store: Store) -> None:
    rows = [
        ShadowResult("prune20", "pruned", 86_400.0 * day, 0.0, tuple(0.001 * i for i in range(1, 101)))
        for day in range(3)
    ]
    store.add_shadow(rows)
    report = shadow_reports(store, "prune20", ["pruned"], 0.05)["pruned"]
    assert report.pairs == 300
    assert report.abs_delta_p99 == pytest.approx(0.099, rel=0.06)
    assert report.abs_delta_p50 == pytest.approx(0.05, rel=0.06)
    assert quantile({}, 0.5) is None
    assert quantile(histogram([0.0, 1e-9, 1.0]), 0.5) == 0.0
