"""Exposures by epoch, for the sample ratio and for arms that come back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the epoch of an exposure, the units that come back, and the counts of each epoch."""
    op.add_column("exposures", sa.Column("epoch", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "returns",
        sa.Column("experiment", sa.Text, nullable=False),
        sa.Column("unit", sa.Text, nullable=False),
        sa.Column("epoch", sa.Text, nullable=False),
        sa.Column("time", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("experiment", "unit", "epoch"),
        sqlite_with_rowid=False,
        comment="The first exposure of a unit in each epoch (epochs.py) after that of its row in exposures.",
    )
    op.create_index("returns_time", "returns", ["time"])
    op.create_table(
        "epoch_counts",
        sa.Column("experiment", sa.Text, nullable=False),
        sa.Column("epoch", sa.Text, nullable=False),
        sa.Column("arm", sa.Text, nullable=False),
        sa.Column("units", sa.BigInteger, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("experiment", "epoch", "arm"),
        sqlite_with_rowid=False,
        comment="Units exposed in an epoch, new or not, and when the first of them was.",
    )
