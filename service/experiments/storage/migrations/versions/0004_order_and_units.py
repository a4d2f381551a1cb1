"""Roll-backs say how much of the log they knew, and shadow results say whose request it was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two columns. Older rows have neither."""
    op.add_column("actions", sa.Column("seen", sa.Integer))
    op.add_column("shadow_results", sa.Column("unit", sa.Text))
