"""Statements that both databases have, each in its own dialect: insert what is new, add to counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

CHUNK = 500
"""Rows of one statement: both databases limit its parameters."""

T = TypeVar("T")


def is_postgresql(db: Connection) -> bool:
    return db.dialect.name == "postgresql"


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows, as many at a time as one statement takes."""
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def insert_new(db: Connection, table: Table) -> Any:
    """INSERT that passes over rows whose primary key is there already."""
    return _insert(db, table).on_conflict_do_nothing(index_elements=list(table.primary_key))


def add_counts(db: Connection, table: Table, column: str, rows: list[dict[str, Any]]) -> None:
    """Adds each row's count to the one of its primary key, or inserts the row."""
    statement = _insert(db, table)
    statement = statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={column: table.c[column] + statement.excluded[column]},
    )
    for chunk in chunks(rows):
        db.execute(statement, chunk)


def _insert(db: Connection, table: Table) -> Any:
    """The two dialects' constructs have the same methods but no common type."""
    return postgresql.insert(table) if is_postgresql(db) else sqlite.insert(table)
