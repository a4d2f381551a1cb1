"""The experiments' database, on SQLite and on a real PostgreSQL."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event, inspect, select, update

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.database import connect, transaction
from headroom.service.experiments.definition import Metric
from headroom.service.experiments.events import Exposure, Outcome, OutcomeReceipt
from headroom.service.experiments.export import page
from headroom.service.experiments.log import Declared, Entry
from headroom.service.experiments.shadow_report import shadow_reports
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import exposures, metadata, outcomes, owner
from tests.service.experiments.making import (
    act,
    at_once,
    experiment,
    exposure,
    measured,
    send,
)

OPEN = [experiment()]  # without metrics it takes any


def outcome(
    number: int, unit: str, *, experiment: str = "prune20", metric: str = "clicks", time: float = 200.0
) -> Outcome:
    return Outcome(experiment=experiment, id=f"o{number}", unit=unit, metric=metric, value=1.0, time=time)


def counts(receipt: OutcomeReceipt) -> tuple[int, int, int]:
    return receipt.accepted, receipt.duplicates, receipt.unknown


def times(store: Store) -> dict[str, float]:
    with store.read() as db:
        return {row.unit: row.time for row in db.execute(select(exposures))}


@pytest.fixture
def stores(url: str) -> Iterator[list[Store]]:
    """Four replicas' stores on one database."""
    made = [Store(url) for _ in range(4)]
    yield made
    for store in made:
        store.close()


def test_replicas_that_see_the_same_units_at_once_count_each_once(stores: list[Store]) -> None:
    rows = [exposure(f"unit{i}", "control" if i % 2 else "pruned") for i in range(1200)]
    at_once(*(lambda s=s, k=k: s.add(rows[k * 50 :] + rows[: k * 50]) for k, s in enumerate(stores)))
    assert stores[0].unit_counts(["prune20"]) == {"prune20": {"control": 600, "pruned": 600}}


def test_replicas_that_write_earlier_exposures_of_the_same_units_do_not_block_each_other(
    stores: list[Store],
) -> None:
    names = [f"unit{number}" for number in range(300)]
    stores[0].add([exposure(unit, time=1000) for unit in names])

    def earlier(k: int) -> list[Exposure]:
        turned = names[k * 20 :] + names[: k * 20]
        return [exposure(unit, time=100 * k + i % 7) for i, unit in enumerate(turned)]

    at_once(*(lambda s=s, k=k: s.add(earlier(k)) for k, s in enumerate(stores, 1)))
    assert {int(at) // 100 for at in times(stores[0]).values()} == {1}
    assert stores[0].unit_counts(["prune20"])["prune20"] == {"control": 300}


def test_replicas_that_start_at_once_make_the_schema_once(stores: list[Store]) -> None:
    at_once(*(store.prepare for store in stores))
    with stores[0].read() as db:
        assert set(inspect(db).get_table_names()) == metadata.tables.keys()


def test_duplicates_are_named_by_their_ids(store: Store) -> None:
    send(store, [outcome(n, "u") for n in (1, 2)], OPEN)
    receipt = send(store, [outcome(n, "u") for n in (3, 2, 4, 3, 1, 3)], OPEN)
    assert counts(receipt) == (2, 4, 0)
    assert receipt.duplicate_ids == ["o2", "o3", "o1", "o3"]  # in the request's order
    twice = [replace(outcome(9, "u"), value=value) for value in (2.0, 3.0)]
    assert counts(send(store, twice, OPEN)) == (1, 1, 0)
    with store.read() as db:
        values = db.scalars(select(outcomes.c.value).where(outcomes.c.id == "o9")).all()
    assert values == [2.0], "the first counts"


def test_no_statement_of_the_running_service_reads_a_whole_table(tmp_path: Path) -> None:
    """SQLite's plans: without the right index an analysis took the square of the units' number."""
    path = tmp_path / "plans.db"
    store = Store(f"sqlite:///{path}")
    statements: list[tuple[str, Sequence[object]]] = []
    store.prepare()

    @event.listens_for(store._engine, "before_cursor_execute")
    def keep(_c: object, _k: object, statement: str, parameters: Sequence[object], *_: object) -> None:
        statements.append((statement, parameters))

    store.add([exposure(f"u{i}") for i in range(3)])
    send(store, [outcome(i, f"u{i}") for i in range(5)], OPEN)
    store.add([exposure(f"u{i}", time=50.0) for i in range(3)])
    for metric in (Metric(name="clicks"), Metric(name="a", kind="ratio", denominator="b", covariate="a")):
        measured(store, OPEN[0], metric, 1e6)
    shadow_reports(store, "prune20", ["pruned"], 0.05)
    store.close()
    plain = [s for s in statements if s[0].startswith(("SELECT", "WITH", "DELETE", "UPDATE"))]
    assert len(plain) >= 4
    with closing(sqlite3.connect(path)) as db:
        for statement, parameters in plain:
            for *_, step in db.execute(f"EXPLAIN QUERY PLAN {statement}", parameters):
                for table in ("outcomes", "exposures", "shadow_results"):
                    assert f"SCAN {table}" not in step, statement
                assert "outcomes USING PRIMARY KEY (experiment=?)" not in step, statement


def test_a_connection_that_is_in_use_while_the_store_closes_is_closed_afterwards(url: str) -> None:
    """Another thread may still read when a service ends."""
    closed = []
    store = Store(url)
    store.add([exposure("u1")])
    event.listen(store._engine.pool, "close", lambda connection, _: closed.append(connection))
    with store._engine.connect() as db:
        used = db.connection.dbapi_connection
        store.close()
        assert used not in closed
        assert db.execute(select(exposures)).all()
    assert used in closed
    assert store.add([exposure("u2")]), "a later call opens others"
    store.close()


def test_rows_of_the_log_come_back_as_they_were_added_and_are_decided_one_after_the_other(
    store: Store,
) -> None:
    config = experiment(traffic=0.5, metrics=[{"name": "click", "margin": 0.1}])
    declared = Declared((config,), {"control": "a score"}, {"pruned": "abc"})
    entry = Entry("config", 1.0, config_version="v", declared=declared)
    store.append(entry)

    def ramp_once(entries: Sequence[Entry]) -> Entry | None:
        return None if any(each.kind == "ramp" for each in entries) else act("ramp", 2.0, traffic=0.25)

    at_once(*(lambda: store.append(ramp_once) for _ in range(4)))
    first, second = store.log()
    assert replace(first, number=0) == entry
    assert replace(second, number=0) == act("ramp", 2.0, traffic=0.25)
    assert store.log(first.number) == [second]
    assert store.last_number() == second.number


def test_a_database_of_another_service_and_of_another_release_is_refused_in_one_sentence(url: str) -> None:
    with closing(Store(url, "production")) as mine:
        mine.add([exposure("a")])
        with closing(Store(url, "staging")) as other:
            with pytest.raises(DatabaseUnavailable, match=r"belongs to the service 'production'.*'staging'"):
                other.add([exposure("b")])
            assert other.incompatible is not None
        assert mine.add([exposure("c")]).total() == 1
        for version, words in ((4, "export its experiments"), (8, "of a newer release")):
            engine = connect(mine.url)
            with transaction(engine, write=True) as db:
                db.execute(update(owner).values(version=version))
            engine.dispose()
            with pytest.raises(DatabaseUnavailable, match=words):
                mine.check()


def test_rows_that_are_stored_while_others_are_exported_are_in_a_later_page(store: Store) -> None:
    """Pages went by random ids, so a row behind the last one was in none."""
    for number in range(4):
        send(store, [outcome(100 - number, "u")], OPEN)
    first = page(store, "prune20", "outcomes", limit=2)
    send(store, [outcome(0, "u")], OPEN)
    ids = [row[first.columns.index("id")] for row in first.rows]
    after = first.next
    while after is not None:
        found = page(store, "prune20", "outcomes", after, limit=2)
        ids += [row[found.columns.index("id")] for row in found.rows]
        after = found.next
    assert ids == ["o100", "o99", "o98", "o97", "o0"]


def test_a_file_that_is_deleted_while_it_is_in_use_takes_nothing_more(tmp_path: Path) -> None:
    """Outcomes were accepted into a file without a name, and were gone with the process."""
    path = tmp_path / "experiments.db"
    with closing(Store(f"sqlite:///{path}")) as store:
        store.add([exposure("a")])
        copy = tmp_path / "copy.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("VACUUM INTO ?", (str(copy),))
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                send(store, [outcome(1, "a")], OPEN)
        assert not path.exists()
        copy.rename(path)
        assert counts(send(store, [outcome(1, "a")], OPEN)) == (1, 0, 0)
