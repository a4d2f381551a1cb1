"""Databases that other releases left: extended, used, or refused with the reason."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import inspect, text

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import VERSION, metadata
from tests.service.experiments.dump_release import DUMPS
from tests.service.experiments.making import at_once, exposure

RELEASES = sorted({file.name.removesuffix(".sqlite.sql") for file in DUMPS.glob("*.sqlite.sql")})


def load(release: str, url: str) -> None:
    """Fill an empty database with what a release has left."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            database.executescript((DUMPS / f"{release}.sqlite.sql").read_text("utf-8"))
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((DUMPS / f"{release}.postgresql.sql").read_bytes())


def rows(store: Store, tables: set[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of tables that have some columns."""
    with store._engine.connect() as db:
        found = {}
        for name in sorted(tables):
            result = db.execute(text(f"SELECT * FROM {name}"))
            found[name] = sorted((dict(row._mapping) for row in result), key=str)
        return found


def schema(store: Store) -> dict[str, Any]:
    """Return columns (with types and whether they may be null), keys and indexes of all tables."""
    with store._engine.connect() as db:
        inspector = inspect(db)
        return {
            name: (
                {
                    column["name"]: (str(column["type"]), column["nullable"])
                    for column in inspector.get_columns(name)
                },
                inspector.get_pk_constraint(name)["constrained_columns"],
                {index["name"]: index["column_names"] for index in inspector.get_indexes(name)},
            )
            for name in inspector.get_table_names()
        }


@pytest.fixture
def new(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """A database that this release has made, of the same kind as `store`."""
    if url.startswith("sqlite"):
        made = Store(f"sqlite:///{tmp_path / 'new.db'}")
    else:
        made = Store(request.getfixturevalue("postgres").create(f"new-{uuid4()}"))
    made.prepare()
    yield made
    made.close()


@pytest.mark.parametrize("release", RELEASES)
def test_a_released_database_becomes_what_this_release_makes_and_keeps_every_row(
    release: str, store: Store, url: str, new: Store
) -> None:
    load(release, url)
    with store._engine.connect() as db:
        tables = set(inspect(db).get_table_names())
    before = rows(store, tables)
    assert min(len(before[name]) for name in ("exposures", "outcomes", "actions", "shadow_results")) > 2
    with closing(Store(url)) as beside:
        at_once(store.prepare, beside.prepare)  # two replicas that start together
    assert schema(store) == schema(new)
    after = rows(store, tables)
    assert after.keys() == before.keys()
    for name, those in before.items():
        assert [{key: row[key] for key in those[0]} for row in after[name]] == those


def test_what_a_database_lacks_is_added_whatever_it_is(store: Store, url: str, new: Store) -> None:
    """As in the first start after an update: a table, and a column that may be null."""
    store.add_exposures([exposure("a")])
    with store._write() as db:
        db.execute(text("DROP TABLE clicks"))
        db.execute(text("ALTER TABLE impressions DROP COLUMN ids"))
        db.execute(text("ALTER TABLE actions DROP COLUMN traffic"))
    with closing(Store(url)) as extended:
        extended.prepare()
        assert schema(extended) == schema(new)
        assert extended.unit_counts(["prune20"]) == {"prune20": {"control": 1}}


def test_a_build_from_before_the_release_is_no_obstacle_on_the_way_back(store: Store, url: str) -> None:
    """Such builds wrote 5, which 0.2 refuses."""
    store.add_exposures([exposure("a")])
    with store._write() as db:
        db.execute(text("UPDATE schema_version SET version = 5"))
    with closing(Store(url)) as extended:
        assert extended.add_exposures([exposure("b")]).total() == 1
        assert rows(extended, {"schema_version"}) == {"schema_version": [{"version": VERSION}]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE schema_version SET version = 99", r"a newer release .* version 99; .* takes 4"),
        ("UPDATE schema_version SET version = 3", r"older than release 0\.2"),
        ("DROP TABLE schema_version", r"older than release 0\.2"),
    ],
)
def test_a_database_that_this_release_cannot_use_is_left_alone(
    store: Store, url: str, change: str, reason: str
) -> None:
    store.add_exposures([exposure("a")])
    with store._write() as db:
        db.execute(text(change))
    with closing(Store(url)) as other:
        for _ in range(2):  # the second call too
            with pytest.raises(DatabaseUnavailable, match=f"^The .*{reason}.* HEADROOM_DATABASE_URL"):
                other.add_exposures([exposure("b")])
        assert other.incompatible is not None
    with pytest.raises(DatabaseUnavailable, match=reason):
        store.check()  # one that was there before
    with pytest.raises(DatabaseUnavailable, match=reason):
        store.add_exposures([exposure("b")])
    with store._engine.connect() as db:
        assert [row.unit for row in db.execute(text("SELECT unit FROM exposures"))] == ["a"]


def test_every_column_that_was_added_may_be_null() -> None:
    """An older release, which does not know it, goes on to write rows."""
    for release in RELEASES:
        with closing(sqlite3.connect(":memory:")) as database:
            database.executescript((DUMPS / f"{release}.sqlite.sql").read_text("utf-8"))
            for table in metadata.sorted_tables:
                known = [row[1] for row in database.execute(f"PRAGMA table_info({table.name})")]
                if known:
                    assert set(known) <= set(table.columns.keys()), "an older release would miss it"
                    added = [column for column in table.columns if column.name not in known]
                    assert all(column.nullable for column in added)
