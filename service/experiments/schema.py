"""The tables of the experiments' database, and how rows are added to them.

A change of the tables needs a revision in migrations/versions.

Times are seconds since the epoch in double precision, so that the arithmetic of analysis windows is the same
in SQLite and PostgreSQL.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

metadata = MetaData()

_SERIAL = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers only INTEGER keys automatically

exposures = Table(
    "exposures",
    metadata,
    Column("experiment", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("time", Double, nullable=False),
    Column("config_version", Text, nullable=False),
    Column("epoch", Text, nullable=False),
    PrimaryKeyConstraint("experiment", "unit"),
    Index("exposures_time", "time"),
    sqlite_with_rowid=False,
)

epoch_counts = Table(
    "epoch_counts",
    metadata,
    Column("experiment", Text, nullable=False),
    Column("epoch", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("units", BigInteger, nullable=False),
    Column("since", Double, nullable=False),
    PrimaryKeyConstraint("experiment", "epoch", "arm"),
    sqlite_with_rowid=False,
    comment="Units by the epoch in which they first came. since: the first one's time.",
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("experiment", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("value", Double, nullable=False),
    Column("time", Double, nullable=False),
    Column("received", Double, nullable=False),
    Column("unmatched", Boolean, nullable=False),
    PrimaryKeyConstraint("experiment", "id"),
    # Holds all columns that an analysis reads. Without it SQLite reads all outcomes for every unit.
    Index("outcomes_unit", "experiment", "unit", "metric", "time", "value"),
    Index("outcomes_time", "time"),
    sqlite_with_rowid=False,
)
# Few outcomes come before their exposure. The sweep that settles them must not read the others.
Index(
    "outcomes_unmatched",
    outcomes.c.received,
    postgresql_where=outcomes.c.unmatched,
    sqlite_where=text("unmatched = 1"),  # SQLite uses the index only if the query has the same text
)

shadow_results = Table(
    "shadow_results",
    metadata,
    Column("number", _SERIAL, primary_key=True),
    Column("experiment", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("time", Double, nullable=False),
    Column("pairs", Integer, nullable=False),
    Column("mean_delta", Double, nullable=False),
    Column("mean_abs_delta", Double, nullable=False),
    Column("rank_correlation", Double),
    Column("top10_overlap", Double),
    Column("ndcg_delta", Double),
    Column("seconds_delta", Double),
    Column("unit", Text),
    Index("shadow_results_experiment", "experiment", "arm"),
    Index("shadow_results_time", "time"),
)

shadow_histograms = Table(
    "shadow_histograms",
    metadata,
    Column("experiment", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("day", Integer, nullable=False),
    Column("bin", Integer, nullable=False),
    Column("pairs", BigInteger, nullable=False),
    PrimaryKeyConstraint("experiment", "arm", "day", "bin"),
    sqlite_with_rowid=False,
    comment="|Score difference| by logarithmic bin (histogram.py) and day since the epoch.",
)

actions = Table(
    "actions",
    metadata,
    Column("number", _SERIAL, primary_key=True),
    Column("experiment", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("time", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("arm", Text),
    Column("traffic", Double),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("seen", Integer),
    Index("actions_experiment", "experiment", "number"),
)


def insert(db: Connection, table: Table) -> Any:
    """Return the dialect's INSERT; the two have the same methods but no common type."""
    return postgresql.insert(table) if db.dialect.name == "postgresql" else sqlite.insert(table)


def insert_new(db: Connection, table: Table) -> Any:
    """Return an INSERT that skips rows whose primary key exists."""
    return insert(db, table).on_conflict_do_nothing(index_elements=list(table.primary_key))


def add_counts(db: Connection, table: Table, column: str) -> Any:
    """Return an INSERT that adds a row's count to that of the row with the same primary key, if it exists."""
    statement = insert(db, table)
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={column: table.c[column] + statement.excluded[column]},
    )
