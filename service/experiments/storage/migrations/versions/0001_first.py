"""Exposures, outcomes, shadow results, actions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make all tables of the first version."""
    _create_exposures()
    _create_outcomes()
    _create_shadow_results()
    _create_actions()


def _serial() -> sa.Column[int]:
    return sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True)


def _create_exposures() -> None:
    op.create_table(
        "exposures",
        sa.Column("experiment", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("arm", sa.Text, nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("config_version", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("experiment", "unit"),
        sqlite_with_rowid=False,
    )
    op.create_index("exposures_time", "exposures", ["time"])
    op.create_table(
        "exposure_counts",
        sa.Column("experiment", sa.Text, nullable=False),
        sa.Column("arm", sa.Text, nullable=False),
        sa.Column("units", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("experiment", "arm"),
        sqlite_with_rowid=False,
        comment="Units ever exposed, so that a check of the sample ratio costs the same at any size.",
    )


def _create_outcomes() -> None:
    op.create_table(
        "outcomes",
        sa.Column("experiment", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("received", sa.Double, nullable=False),
        sa.Column("unmatched", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("experiment", "id"),
        sqlite_with_rowid=False,
    )
    op.create_index("outcomes_unit", "outcomes", ["experiment", "unit", "metric", "time", "value"])
    op.create_index("outcomes_time", "outcomes", ["time"])
    op.create_index(
        "outcomes_unmatched",
        "outcomes",
        ["received"],
        postgresql_where=sa.text("unmatched"),
        sqlite_where=sa.text("unmatched = 1"),
    )


def _create_shadow_results() -> None:
    op.create_table(
        "shadow_results",
        _serial(),
        sa.Column("experiment", sa.Text, nullable=False),
        sa.Column("arm", sa.Text, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("pairs", sa.Integer, nullable=False),
        sa.Column("mean_delta", sa.Double, nullable=False),
        sa.Column("mean_abs_delta", sa.Double, nullable=False),
        sa.Column("rank_correlation", sa.Double),
        sa.Column("top10_overlap", sa.Double),
        sa.Column("ndcg_delta", sa.Double),
        sa.Column("seconds_delta", sa.Double),
    )
    op.create_index("shadow_results_experiment", "shadow_results", ["experiment", "arm"])
    op.create_index("shadow_results_time", "shadow_results", ["time"])
    op.create_table(
        "shadow_histograms",
        sa.Column("experiment", sa.Text, nullable=False),
        sa.Column("arm", sa.Text, nullable=False),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("bin", sa.Integer, nullable=False),
        sa.Column("pairs", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("experiment", "arm", "day", "bin"),
        sqlite_with_rowid=False,
        comment="|Score difference| by logarithmic bin (absolute_differences.py) and day since the epoch.",
    )


def _create_actions() -> None:
    op.create_table(
        "actions",
        _serial(),
        sa.Column("experiment", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("arm", sa.Text),
        sa.Column("traffic", sa.Double),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_index("actions_experiment", "actions", ["experiment", "number"])
