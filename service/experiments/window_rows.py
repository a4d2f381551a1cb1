"""The guardrails' windows in the database: each replica replaces its own rows, and reads the others'.

The rows are as many as the arms times the replicas that served in the last minute. Their age is measured by
the database's clock, because the clocks of nodes differ.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from headroom.service.experiments import tables
from headroom.service.experiments.events import values_of
from headroom.service.experiments.tables import guardrail_windows

FRESH_SECONDS = 15.0
"""An older row does not count: its replica is gone, or no longer reaches the database."""

KEPT_SECONDS = 60.0
"""An older row is deleted."""


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One arm's last minute on one replica. The fields are the table's columns, without the time."""

    experiment: str
    arm: str
    replica: str
    basis: str
    requests: int
    errors: int
    slow: int
    units: str


_COLUMNS = [guardrail_windows.c[name] for name in WindowRow.__slots__]


def replace_own(db: Connection, rows: Sequence[WindowRow]) -> None:
    """Store a replica's rows in place of its earlier ones."""
    statement = tables.insert(db, guardrail_windows).values(time=tables.clock(db))
    keys = list(guardrail_windows.primary_key)
    others = {
        column.name: statement.excluded[column.name] for column in guardrail_windows.c if column not in keys
    }
    db.execute(
        statement.on_conflict_do_update(index_elements=keys, set_=others), [values_of(row) for row in rows]
    )


def of_others(db: Connection, replica: str, experiments: Collection[str]) -> list[WindowRow]:
    """Return the fresh rows of these experiments that other replicas have stored."""
    query = select(*_COLUMNS).where(
        guardrail_windows.c.experiment.in_(list(experiments)),
        guardrail_windows.c.replica != replica,
        guardrail_windows.c.time > tables.clock(db) - FRESH_SECONDS,
    )
    return [WindowRow(*row) for row in db.execute(query)]


def delete_old(db: Connection) -> None:
    """Delete the rows of replicas that are gone."""
    db.execute(delete(guardrail_windows).where(guardrail_windows.c.time < tables.clock(db) - KEPT_SECONDS))
