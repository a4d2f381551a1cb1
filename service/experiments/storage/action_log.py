"""The log of actions: what operators and guardrails did to each experiment, in order."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, insert, select

from service.experiments.definition.events import Action
from service.experiments.storage import upserts
from service.experiments.storage.schema import actions

_LOCK = 0x6163746E


def append(db: Connection, rows: Sequence[Action]) -> list[int]:
    """Append actions and return their numbers; for a second start, that of the first."""
    lock(db)
    return [_append(db, action) for action in rows]


def lock(db: Connection) -> None:
    """Keep others from appending until the transaction ends; so actions are visible in order of number."""
    if upserts.is_postgresql(db):  # SQLite: writing transactions exclude each other
        db.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")


def read(db: Connection, experiments: Collection[str]) -> list[tuple[int, Action]]:
    """Return all actions on these experiments with their numbers, in their order."""
    query = select(actions).where(actions.c.experiment.in_(list(experiments))).order_by(actions.c.number)
    return [
        (int(row["number"]), Action(**{name: row[name] for name in Action.__slots__}))
        for row in db.execute(query).mappings()
    ]


def _append(db: Connection, action: Action) -> int:
    if action.kind == "start":
        started = select(actions.c.number).where(
            actions.c.experiment == action.experiment, actions.c.kind == "start"
        )
        if (number := db.scalar(started)) is not None:
            return int(number)
    values = {name: getattr(action, name) for name in Action.__slots__}
    return int(db.execute(insert(actions).returning(actions.c.number), values).scalar_one())
