"""The tables of the experiments' database; docs/experiments-data.md says what their rows mean.

Times are seconds since the epoch in double precision, so that the arithmetic of analysis windows is the same
in SQLite and PostgreSQL. `number` counts rows in the order in which they were added.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
)
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")

VERSION = 7
"""Stands in the database. A release refuses a version that it does not know."""

metadata = MetaData()
owner = Table(
    "owner",
    metadata,
    Column("service", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    comment="One row: the name of the service that the database belongs to, and the version of its tables.",
)


def _keys(*names: str) -> list[Column[Any]]:
    """Return text columns of a primary key."""
    return [Column(name, Text, primary_key=True) for name in names]


def _columns(kind: Any, *names: str, nullable: bool = False, comment: str | None = None) -> list[Column[Any]]:
    """Return columns of one type."""
    return [Column(name, kind, nullable=nullable, comment=comment) for name in names]


def _number() -> Column[Any]:
    """Return a primary key that the database counts up. SQLite does so only for INTEGER."""
    return Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True)


log = Table(
    "log",
    metadata,
    _number(),
    *_columns(Double, "time"),
    *_columns(Text, "release", "kind", "actor", "config_version", "experiment", "reason", "detail"),
    *_columns(Text, "arm", nullable=True),
    *_columns(Double, "traffic", nullable=True),
    *_columns(Text, "declared", nullable=True, comment="JSON of `Declared`."),
    *_columns(Text, "report", nullable=True, comment="JSON of the last `Report`, of a deletion."),
    sqlite_autoincrement=True,
)

exposures = Table(
    "exposures",
    metadata,
    _number(),
    *_columns(Text, "experiment", "unit", "arm", "config_version"),
    *_columns(Integer, "bucket"),
    *_columns(Integer, "slot", nullable=True),
    *_columns(Double, "time"),
    UniqueConstraint("experiment", "unit", "arm"),
    Index("exposures_number", "experiment", "number"),
    sqlite_autoincrement=True,
)

unit_counts = Table(
    "unit_counts",
    metadata,
    *_keys("experiment", "arm"),
    *_columns(BigInteger, "units"),
    sqlite_with_rowid=False,
    comment="How many rows of `exposures` each arm has.",
)

outcomes = Table(
    "outcomes",
    metadata,
    _number(),
    *_columns(Text, "experiment", "id", "unit", "metric"),
    *_columns(Double, "value", "time"),
    UniqueConstraint("experiment", "id"),
    # Holds all columns that an analysis reads. Without it SQLite reads all outcomes for every unit.
    Index("outcomes_unit", "experiment", "unit", "metric", "time", "value"),
    Index("outcomes_number", "experiment", "number"),
    sqlite_autoincrement=True,
)

impressions = Table(
    "impressions",
    metadata,
    _number(),
    *_columns(Text, "experiment", "id", "unit", "config_version", "teams_by_index"),
    *_columns(Text, "places", comment="A JSON array of the request's indices in the order shown."),
    *_columns(Text, "ids", nullable=True, comment="A JSON array of the ids that the request sent."),
    *_columns(Text, "query_id", nullable=True, comment="The caller's own id of the list."),
    *_columns(Text, "content", comment="A hash of `teams_by_index`, `places` and `ids`."),
    *_columns(Double, "time"),
    UniqueConstraint("experiment", "id", "content", "time"),
    Index("impressions_number", "experiment", "number"),
    Index("impressions_id", "id"),
    Index("impressions_query", "query_id"),
    sqlite_autoincrement=True,
)

clicks = Table(
    "clicks",
    metadata,
    _number(),
    *_columns(Text, "experiment", comment="Empty if the sender named none."),
    *_columns(Text, "id", "unit", "metric"),
    *_columns(Text, "list_id", comment="An impression's id, or a caller's query id."),
    *_columns(Double, "value", "time"),
    *_columns(Integer, "index", "rank", nullable=True),
    *_columns(Text, "object_id", nullable=True),
    UniqueConstraint("experiment", "id"),
    Index("clicks_list", "list_id"),
    Index("clicks_number", "experiment", "number"),
    sqlite_autoincrement=True,
)

shadow_results = Table(
    "shadow_results",
    metadata,
    _number(),
    *_columns(Text, "experiment", "arm"),
    *_columns(Double, "time", "mean_delta", "mean_abs_delta"),
    *_columns(Double, "rank_correlation", "top10_overlap", "ndcg_delta", "seconds_delta", nullable=True),
    *_columns(Text, "unit", nullable=True),
    Index("shadow_results_experiment", "experiment", "arm"),
)

guardrail_windows = Table(
    "guardrail_windows",
    metadata,
    *_keys("experiment", "arm", "replica"),
    *_columns(Text, "basis", comment="What is counted; only rows of the same basis are added up."),
    *_columns(Text, "counts", comment="JSON of `Counts`, with the units that failed most and latest scores."),
    *_columns(Double, "time", comment="Of the database's clock."),
    sqlite_with_rowid=False,
    comment="The last minute of each arm on each replica.",
)


def chunks(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the rows in lists of at most `size`, such as fit into one statement."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def insert(db: Connection, table: Table) -> Any:
    """Return the dialect's INSERT; the two have the same methods but no common type."""
    return postgresql.insert(table) if db.dialect.name == "postgresql" else sqlite.insert(table)


def insert_new(db: Connection, table: Table) -> Any:
    """Return an INSERT that skips rows for which a key exists."""
    return insert(db, table).on_conflict_do_nothing()


def clock(db: Connection) -> ColumnElement[float]:
    """Return the database's time, in Unix seconds."""
    if db.dialect.name == "postgresql":
        return literal_column("CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)")
    return literal_column("(julianday('now') - 2440587.5) * 86400.0")
