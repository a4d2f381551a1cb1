"""Deletes old rows, a few at a time, so that no transaction holds a lock for long."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, select, tuple_, update

from service.experiments.storage.schema import exposures, outcomes, returns, shadow_histograms, shadow_results

_BY_UNIT = (outcomes, exposures, returns)

_EXPOSED = exists().where(
    exposures.c.experiment == outcomes.c.experiment, exposures.c.unit == outcomes.c.unit
)

GRACE_S = 86_400
"""How long an outcome waits for its exposure, which may still be in a replica's buffer."""


def delete_chunk(
    db: Connection, *, cutoff: float, now: float, limit: int, running: Collection[str] = ()
) -> int:
    """Delete up to `limit` rows of each table from before the cutoff, and outcomes without exposure.

    Return how many rows were handled; 0 if nothing is left to do.
    running: experiments that keep their units and the outcomes of these. A unit whose row is gone would count
        again.
    """
    kept = sorted(running)
    old = (
        *((table, (table.c.time < cutoff) & table.c.experiment.not_in(kept)) for table in _BY_UNIT),
        (outcomes, (outcomes.c.time < cutoff) & outcomes.c.experiment.in_(kept) & ~_EXPOSED),
        (shadow_results, shadow_results.c.time < cutoff),
        (shadow_histograms, shadow_histograms.c.day < int(cutoff // 86_400)),
    )
    return _match(db, now - GRACE_S, limit) + sum(_delete(db, table, which, limit) for table, which in old)


def _match(db: Connection, waited_since: float, limit: int) -> int:
    """Settle outcomes that came before their exposure: mark those that have it now, delete the others."""
    waiting = outcomes.c.unmatched & (outcomes.c.received < waited_since)
    rows = db.execute(
        select(outcomes.c.experiment, outcomes.c.id, _EXPOSED.label("exposed")).where(waiting).limit(limit)
    ).all()
    for experiment in {row.experiment for row in rows}:
        of_experiment = [row for row in rows if row.experiment == experiment]
        these = outcomes.c.experiment == experiment
        matched = these & outcomes.c.id.in_([row.id for row in of_experiment if row.exposed])
        lost = these & outcomes.c.id.in_([row.id for row in of_experiment if not row.exposed])
        db.execute(update(outcomes).where(matched).values(unmatched=False))
        db.execute(delete(outcomes).where(lost))
    return len(rows)


def _delete(db: Connection, table: Table, which: ColumnElement[bool], limit: int) -> int:
    key = tuple_(*table.primary_key)
    chosen = select(*table.primary_key).where(which).limit(limit)
    return db.execute(delete(table).where(key.in_(chosen))).rowcount
