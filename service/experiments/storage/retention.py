"""Deletes old rows, a few at a time, so that no transaction holds a lock for long."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, select, tuple_, update

from service.experiments.storage import upserts
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
    """Delete up to `limit` rows of each table from before the cutoff, and outcomes that waited in vain.

    Return how many rows were handled; 0 if nothing is left to do.
    running: experiments that keep their units and the outcomes of these. A unit whose row is gone would count
        again.
    """
    kept = sorted(running)
    old = (
        *((table, (table.c.time < cutoff) & table.c.experiment.not_in(kept)) for table in _BY_UNIT),
        (shadow_results, shadow_results.c.time < cutoff),
        (shadow_histograms, shadow_histograms.c.day < int(cutoff // 86_400)),
    )
    return _match(db, now - GRACE_S, limit) + sum(_delete(db, table, which, limit) for table, which in old)


Position = tuple[float, str, str]
"""An outcome's time, experiment and id: where a search of `unexposed` has come to."""


def unexposed(
    db: Connection, *, cutoff: float, after: Position | None, limit: int
) -> tuple[list[Position], Position | None]:
    """Look at the next `limit` outcomes from before the cutoff. Return those of units without an exposure.

    Also return the position from which to go on; None at the end. Nearly all old outcomes of a running
    experiment stay, so this reads them a few at a time, and without a lock.
    """
    columns = outcomes.c.time, outcomes.c.experiment, outcomes.c.id
    query = select(*columns, _EXPOSED.label("exposed")).where(outcomes.c.time < cutoff)
    if after is not None:  # the first condition is one that both databases find in the index of times
        query = query.where(outcomes.c.time >= after[0], tuple_(*columns) > tuple_(*after))
    rows = [(tuple(row[:3]), row.exposed) for row in db.execute(query.order_by(*columns).limit(limit))]
    return [key for key, exposed in rows if not exposed], rows[-1][0] if len(rows) == limit else None


def delete_unexposed(db: Connection, found: Collection[Position]) -> None:
    """Delete outcomes that `unexposed` found, unless their exposure has come since."""
    for experiment in sorted({experiment for _, experiment, _ in found}):
        ids = [id_ for _, of, id_ in found if of == experiment]
        for chunk in upserts.chunks(ids):
            which = (outcomes.c.experiment == experiment) & outcomes.c.id.in_(chunk)
            db.execute(delete(outcomes).where(which, ~_EXPOSED))


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
