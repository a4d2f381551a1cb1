"""Two statements in the dialects of both databases: insert new rows, and add to counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

CHUNK = 500
"""Rows per statement; both databases limit a statement's parameters."""

T = TypeVar("T")


def is_postgresql(db: Connection) -> bool:
    """Return whether the connection is to PostgreSQL."""
    return db.dialect.name == "postgresql"


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the rows in lists that fit into one statement."""
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def insert_new(db: Connection, table: Table) -> Any:
    """Return an INSERT that skips rows whose primary key exists."""
    return _insert(db, table).on_conflict_do_nothing(index_elements=list(table.primary_key))


def add_counts(db: Connection, table: Table, column: str, rows: list[dict[str, Any]]) -> None:
    """Add each row's count to that of the row with the same primary key, or insert the row."""
    statement = _insert(db, table)
    statement = statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={column: table.c[column] + statement.excluded[column]},
    )
    for chunk in chunks(rows):
        db.execute(statement, chunk)


def _insert(db: Connection, table: Table) -> Any:
    """Return the dialect's INSERT; the two have the same methods but no common type."""
    return postgresql.insert(table) if is_postgresql(db) else sqlite.insert(table)
