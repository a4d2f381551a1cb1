"""Brings the database to the schema of this release, once, even if many replicas start at the same time."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine

from service.errors import DatabaseUnavailable
from service.experiments.storage.connection import transaction

_LOCK = 0x68656164726F6F6D  # "headroom" in ASCII, because PostgreSQL's advisory locks have numbers
_SECONDS = 60


def migrate(engine: Engine) -> None:
    """Apply the missing revisions in one transaction under a lock.

    Raises DatabaseUnavailable, also if a later release of headroom has changed the schema.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    with transaction(engine, write=True, seconds=_SECONDS) as connection:
        _lock(connection)
        config = Config()
        config.set_main_option(
            "script_location", str(Path(__file__).parent / "migrations").replace("%", "%%")
        )
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise DatabaseUnavailable(
                message="The experiments' database was made by a later release."
            ) from error


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":  # SQLite: writing transactions exclude each other
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_SECONDS}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
