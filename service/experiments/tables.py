"""The tables of the experiments' database, and how rows are added to them.

`migration` brings a database to what is declared here. So a new table, or a new column with `nullable=True`,
needs only its declaration, and a code that takes NULL for "written by an older release". Nothing else may
change within a minor release (see `migration`).

Times are seconds since the epoch in double precision, so that the arithmetic of analysis windows is the same
in SQLite and PostgreSQL.
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

VERSION = 4
"""Stands in the database, and changes only with what an older release could not use. A release older than the
database refuses a version that it does not know."""

BUILD_VERSION = 5
"""Builds between 0.2 and 0.3 wrote this one; the tables are those of VERSION."""

metadata = MetaData()
schema_version = Table("schema_version", metadata, Column("version", Integer, primary_key=True))
secrets = Table(
    "secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    comment="Random keys of this database, made once. No route returns them.",
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


exposures = Table(
    "exposures",
    metadata,
    *_keys("experiment", "unit"),
    *_columns(Text, "arm", "config_version"),
    *_columns(Integer, "bucket"),
    *_columns(Double, "time"),
    *_columns(Integer, "slot", nullable=True),
    sqlite_with_rowid=False,
)

unit_counts = Table(
    "unit_counts",
    metadata,
    *_keys("experiment", "arm"),
    *_columns(BigInteger, "units"),
    sqlite_with_rowid=False,
    comment="How many units of `exposures` each arm has.",
)

outcomes = Table(
    "outcomes",
    metadata,
    *_keys("experiment", "id"),
    *_columns(Text, "unit", "metric"),
    *_columns(Double, "value", "time"),
    # Holds all columns that an analysis reads. Without it SQLite reads all outcomes for every unit.
    Index("outcomes_unit", "experiment", "unit", "metric", "time", "value"),
    sqlite_with_rowid=False,
)

impressions = Table(
    "impressions",
    metadata,
    *_keys("experiment", "id"),
    *_columns(Text, "unit", "config_version", "teams_by_index"),
    *_columns(Text, "places", comment="A JSON array of the request's indices in the order shown."),
    *_columns(Text, "ids", nullable=True, comment="A JSON array of the ids that the request sent."),
    *_columns(Text, "query_id", nullable=True, comment="The caller's own id of the list."),
    *_columns(Integer, "is_reused", nullable=True, comment="1 once another list had the same query_id."),
    *_columns(Double, "time"),
    Index("impressions_time", "time"),
)

clicks = Table(
    "clicks",
    metadata,
    *_keys("experiment", "impression", "metric"),
    Column("index", Integer, primary_key=True, autoincrement=False),
    *_columns(Text, "id", "unit"),
    *_columns(Double, "value", "time"),
    UniqueConstraint("experiment", "id"),
    Index("clicks_time", "time"),
    sqlite_with_rowid=False,
)

early_clicks = Table(
    "early_clicks",
    metadata,
    *_keys("experiment", "id"),
    *_columns(Text, "unit", "metric", "impression"),
    *_columns(Double, "value", "time"),
    *_columns(Integer, "index", "rank", nullable=True),
    *_columns(Text, "object_id", nullable=True),
    *_columns(Double, "received"),
    *_columns(Integer, "is_uncertain", nullable=True, comment="1 if only a query_id names the list."),
    Index("early_clicks_impression", "experiment", "impression"),
    Index("early_clicks_received", "received"),
    Index("early_clicks_uncertain", "is_uncertain", "received"),
    comment="Clicks whose impression is not stored yet.",
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

actions = Table(
    "actions",
    metadata,
    _number(),
    *_columns(Text, "experiment", "kind", "actor", "reason", "detail"),
    *_columns(Double, "time"),
    *_columns(Text, "arm", nullable=True),
    *_columns(Double, "traffic", nullable=True),
    *_columns(Text, "terms", nullable=True, comment="JSON of `Terms`."),
    Index("actions_experiment", "experiment", "number"),
)

guardrail_windows = Table(
    "guardrail_windows",
    metadata,
    *_keys("experiment", "arm", "replica"),
    *_columns(Text, "basis", comment="What is counted; only rows of the same basis are added up."),
    *_columns(BigInteger, "requests", "errors", "slow"),
    *_columns(Text, "units", comment="JSON: units with most errors and slow requests, and scores of units."),
    *_columns(Double, "time", comment="Of the database's clock."),
    sqlite_with_rowid=False,
    comment="The last minute of each arm on each replica.",
)

final_reports = Table(
    "final_reports",
    metadata,
    *_keys("experiment"),
    *_columns(Text, "report", comment="JSON of `Report`."),
    sqlite_with_rowid=False,
    comment="What the last report said of an experiment whose lists, clicks and outcomes are deleted.",
)

started_experiments = Table(
    "started_experiments",
    metadata,
    _number(),
    Column("name", Text, unique=True, nullable=False),
    *_columns(Text, "definition"),
    *_columns(Double, "ended", nullable=True),
    comment="Experiments that were started without a file. ended: when one was stopped, as `actions` has it.",
)


def chunks(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the rows in lists of at most `size`, such as fit into one statement."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def insert(db: Connection, table: Table) -> Any:
    """Return the dialect's INSERT; the two have the same methods but no common type."""
    return postgresql.insert(table) if db.dialect.name == "postgresql" else sqlite.insert(table)


def insert_once(db: Connection, table: Table) -> Any:
    """Return an INSERT that skips rows for which any key, also one that is not the primary key, exists."""
    return insert(db, table).on_conflict_do_nothing()


def insert_new(db: Connection, table: Table) -> Any:
    """Return an INSERT that skips rows whose primary key exists."""
    return insert(db, table).on_conflict_do_nothing(index_elements=list(table.primary_key))


def add_units(db: Connection) -> Any:
    """Return an INSERT into the counts that adds its units to those of the same arm."""
    statement = insert(db, unit_counts)
    return statement.on_conflict_do_update(
        index_elements=list(unit_counts.primary_key),
        set_={"units": unit_counts.c.units + statement.excluded.units},
    )


def clock(db: Connection) -> ColumnElement[float]:
    """Return the database's time, in Unix seconds."""
    if db.dialect.name == "postgresql":
        return literal_column("CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)")
    return literal_column("(julianday('now') - 2440587.5) * 86400.0")
