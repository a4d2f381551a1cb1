"""The tables of the experiments' database. A change here needs a revision in migrations/versions.

Times are seconds since the epoch in double precision, so that the arithmetic of analysis windows is the same
in SQLite and PostgreSQL.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    false,
    text,
)

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
    Column("epoch", Text, nullable=False, server_default=""),
    PrimaryKeyConstraint("experiment", "unit"),
    Index("exposures_time", "time"),
    sqlite_with_rowid=False,
)

returns = Table(
    "returns",
    metadata,
    Column("experiment", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("epoch", Text, nullable=False),
    Column("time", Double, nullable=False),
    PrimaryKeyConstraint("experiment", "unit", "epoch"),
    Index("returns_time", "time"),
    sqlite_with_rowid=False,
    comment="The first exposure of a unit in each epoch (epochs.py) after that of its row in exposures.",
)

exposure_counts = Table(
    "exposure_counts",
    metadata,
    Column("experiment", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("units", BigInteger, nullable=False),
    PrimaryKeyConstraint("experiment", "arm"),
    sqlite_with_rowid=False,
    comment="Units ever exposed, so that a check of the sample ratio costs the same at any size.",
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
    comment="New units, and returning ones beside an arm (epochs.py). since: the first one's time, or 0.",
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
    Column("unmatched", Boolean, nullable=False, server_default=false()),
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
    comment="|Score difference| by logarithmic bin (absolute_differences.py) and day since the epoch.",
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
