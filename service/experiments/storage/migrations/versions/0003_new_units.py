"""A unit counts in the epoch in which it first comes. A release that counts returns refuses the database."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Say what the counts are, where tables have comments (PostgreSQL)."""
    if op.get_bind().dialect.supports_comments:
        op.create_table_comment(
            "epoch_counts",
            "New units, and returning ones beside an arm (epochs.py). since: the first one's time, or 0.",
        )
