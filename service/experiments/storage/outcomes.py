"""Stores outcomes, and says of each what becomes of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, select

from service.experiments.definition.events import Outcome, PendingOutcome, UnknownOutcome
from service.experiments.storage import upserts
from service.experiments.storage.schema import exposures, outcomes

MAX_LISTED = 10
"""Names of metrics in a message, at most."""

Numbered = tuple[int, Outcome]
"""An outcome and its position in the request."""


def sorted_out(
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
            message = f"{row.experiment!r} has no metric {row.metric!r}; it has {_listed(declared)}"
            unknown.append(UnknownOutcome(index, row.id, "metric", message))
        else:
            known.append((index, row))
    return known, unknown


def record(
    db: Connection, rows: Sequence[Numbered], history: Collection[tuple[str, str]], *, received: float
) -> tuple[int, list[PendingOutcome]]:
    """Store outcomes. Return how many are new, and which of these wait for the exposure of their unit.

    history: the experiments and metrics whose outcomes wait for an exposure as long as retention allows.
    """
    units: dict[str, set[str]] = {}
    for _, row in rows:
        units.setdefault(row.experiment, set()).add(row.unit)
    exposed: set[tuple[str, str]] = set()
    for experiment, of_experiment in units.items():
        # One query each, because SQLite answers (a, b) IN (...) by reading the whole table.
        query = select(exposures.c.unit).where(
            exposures.c.experiment == experiment, exposures.c.unit.in_(sorted(of_experiment))
        )
        exposed.update((experiment, unit) for unit in db.scalars(query))
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
        key=lambda v: (v["experiment"], v["id"]),
    )
    statement = upserts.insert_new(db, outcomes).returning(outcomes.c.experiment, outcomes.c.id)
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
    return stored, pending


def _listed(names: Collection[str]) -> str:
    """Return the first names in order, as many as a message has room for."""
    return ", ".join(sorted(names)[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
