"""Makes the tables. Nothing has been released, so this is the only revision; a later one only adds to it."""

from __future__ import annotations

from alembic import op

from service.experiments.schema import metadata

revision = "tables1"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables of schema.py. The first revision after a release freezes their columns here."""
    metadata.create_all(op.get_bind())
