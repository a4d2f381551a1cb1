"""Stores outcomes, says of each what becomes of it, and settles those that came before their exposure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, delete, exists, select, update

from service.experiments.events import Outcome, OutcomeReceipt, PendingOutcome, UnknownOutcome
from service.experiments.schema import exposures, insert_new, outcomes

GRACE_S = 86_400
"""How long an outcome waits for its exposure, which may still be in a replica's buffer."""

MAX_LISTED = 10
"""Names of metrics in a message, at most."""

EXPOSED = exists().where(exposures.c.experiment == outcomes.c.experiment, exposures.c.unit == outcomes.c.unit)

Numbered = tuple[int, Outcome]
"""An outcome and its index in the request."""


def sort_out(
    rows: Sequence[Outcome], experiments: Collection[str], metrics: Mapping[str, Collection[str]]
) -> tuple[list[Numbered], list[UnknownOutcome]]:
    """Return the outcomes of known experiments and metrics, and the others.

    metrics: the metrics of each experiment; one that is missing here takes any.
    """
    known: list[Numbered] = []
    unknown: list[UnknownOutcome] = []
    for index, row in enumerate(rows):
        declared = metrics.get(row.experiment)
        if row.experiment not in experiments:
            message = f"there is no experiment {row.experiment!r}"
            unknown.append(UnknownOutcome(index, row.id, "experiment", message))
        elif declared is not None and row.metric not in declared:
            names = ", ".join(sorted(declared)[:MAX_LISTED]) + (", …" if len(declared) > MAX_LISTED else "")
            message = f"{row.experiment!r} has no metric {row.metric!r}; it has {names}"
            unknown.append(UnknownOutcome(index, row.id, "metric", message))
        else:
            known.append((index, row))
    return known, unknown


def record(
    db: Connection, rows: Sequence[Numbered], history: Collection[tuple[str, str]], *, received: float
) -> OutcomeReceipt:
    """Store outcomes of known experiments.

    history: the experiments and metrics whose outcomes wait for an exposure as long as retention allows.
    """
    exposed = _exposed_units(db, [row for _, row in rows])
    values = sorted(
        (
            {name: getattr(row, name) for name in Outcome.__slots__}
            | {
                "received": received,
                "unmatched": (row.experiment, row.unit) not in exposed
                and (row.experiment, row.metric) not in history,
            }
            for _, row in rows
        ),
        key=lambda value: (value["experiment"], value["id"]),
    )
    statement = insert_new(db, outcomes).returning(outcomes.c.experiment, outcomes.c.id)
    new = {(row.experiment, row.id) for row in db.execute(statement, values)}
    stored, pending = len(new), []
    for index, row in rows:
        key = (row.experiment, row.id)
        if key in new and (row.experiment, row.unit) not in exposed:
            is_history = (row.experiment, row.metric) in history
            kept = "as what it did before one" if is_history else "for a day"
            message = f"no exposure of this unit to {row.experiment!r} is stored so far; kept {kept}"
            pending.append(PendingOutcome(index, row.id, message))
        new.discard(key)  # the same id again in this batch is a duplicate
    return OutcomeReceipt(
        accepted=stored - len(pending),
        duplicates=len(rows) - stored,
        unknown=0,
        pending=len(pending),
        pending_outcomes=pending,
    )


def settle(db: Connection, waited_since: float, limit: int) -> int:
    """Settle outcomes that came before their exposure: mark those that have it now, delete the others."""
    waiting = outcomes.c.unmatched & (outcomes.c.received < waited_since)
    keys = outcomes.c.experiment, outcomes.c.id
    rows = db.execute(select(*keys, EXPOSED.label("exposed")).where(waiting).limit(limit)).all()
    for experiment in {row.experiment for row in rows}:
        these = [row for row in rows if row.experiment == experiment]
        matched = [row.id for row in these if row.exposed]
        lost = [row.id for row in these if not row.exposed]
        mine = outcomes.c.experiment == experiment
        db.execute(update(outcomes).where(mine, outcomes.c.id.in_(matched)).values(unmatched=False))
        db.execute(delete(outcomes).where(mine, outcomes.c.id.in_(lost)))
    return len(rows)


def _exposed_units(db: Connection, rows: Sequence[Outcome]) -> set[tuple[str, str]]:
    """Return the experiment and unit of the outcomes whose unit has an exposure."""
    units: dict[str, set[str]] = {}
    for row in rows:
        units.setdefault(row.experiment, set()).add(row.unit)
    exposed: set[tuple[str, str]] = set()
    for experiment, of_experiment in units.items():
        # One query each, because SQLite answers (a, b) IN (...) by reading the whole table.
        query = select(exposures.c.unit).where(
            exposures.c.experiment == experiment, exposures.c.unit.in_(sorted(of_experiment))
        )
        exposed.update((experiment, unit) for unit in db.scalars(query))
    return exposed
