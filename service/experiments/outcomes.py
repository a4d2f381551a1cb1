"""Stores outcomes, says of each what becomes of it, and settles those that came before their exposure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sqlalchemy import Connection, delete, exists, select, update

from service.experiments.definition import ExperimentConfig
from service.experiments.events import Outcome, PendingOutcome, UnknownOutcome, values_of
from service.experiments.tables import exposures, insert_new, outcomes

MAX_LISTED = 10
"""Names of metrics in a message, at most."""

Numbered = tuple[int, Outcome]
"""An outcome and its index in the request."""


def sort_out(
    rows: Sequence[Outcome], configs: Mapping[str, ExperimentConfig], others: Collection[str]
) -> tuple[list[Numbered], list[UnknownOutcome]]:
    """Return the outcomes of known experiments and metrics, and those of unknown ones.

    configs: by name; one without metrics takes any. others: further experiments, which take any metric.
    """
    known: list[Numbered] = []
    unknown: list[UnknownOutcome] = []
    sources = {
        name: {source for metric in config.metrics for source in metric.sources}
        for name, config in configs.items()
    }
    for index, row in enumerate(rows):
        declared = sources.get(row.experiment)
        if declared is None and row.experiment not in others:
            message = f"there is no experiment {row.experiment!r}"
            unknown.append(UnknownOutcome(index, row.id, "experiment", message))
        elif declared and row.metric not in declared:
            names = ", ".join(sorted(declared)[:MAX_LISTED]) + (", …" if len(declared) > MAX_LISTED else "")
            message = f"{row.experiment!r} has no metric {row.metric!r}; it has {names}"
            unknown.append(UnknownOutcome(index, row.id, "metric", message))
        else:
            known.append((index, row))
    return known, unknown


def record(
    db: Connection, rows: Sequence[Numbered], waits_until: Callable[[Outcome], float]
) -> tuple[int, list[PendingOutcome]]:
    """Store outcomes of known experiments. Return how many are new, and those whose unit has no exposure.

    waits_until: returns the time until which an outcome without an exposure is kept.
    """
    exposed = _exposed_units(db, [row for _, row in rows])
    values = [
        values_of(row) | {"waits_until": None if (row.experiment, row.unit) in exposed else waits_until(row)}
        for _, row in rows
    ]
    values.sort(key=lambda value: (value["experiment"], value["id"]))  # so that two calls cannot deadlock
    statement = insert_new(db, outcomes).returning(outcomes.c.experiment, outcomes.c.id)
    new = {(row.experiment, row.id) for row in db.execute(statement, values)}
    stored, pending = len(new), []
    for index, row in rows:
        key = (row.experiment, row.id)
        if key in new and (row.experiment, row.unit) not in exposed:
            message = f"no exposure of this unit to {row.experiment!r} is stored so far"
            pending.append(PendingOutcome(index, row.id, message))
        new.discard(key)  # the same id again in this batch is a duplicate
    return stored, pending


def settle(db: Connection, now: float, limit: int) -> int:
    """Settle outcomes that have waited: mark those whose exposure is stored by now, delete the others."""
    is_exposed = exists().where(
        exposures.c.experiment == outcomes.c.experiment, exposures.c.unit == outcomes.c.unit
    )
    waited = select(outcomes.c.experiment, outcomes.c.id, is_exposed.label("exposed"))
    rows = db.execute(waited.where(outcomes.c.waits_until < now).limit(limit)).all()
    for experiment in {row.experiment for row in rows}:
        these = [row for row in rows if row.experiment == experiment]
        matched = [row.id for row in these if row.exposed]
        lost = [row.id for row in these if not row.exposed]
        mine = outcomes.c.experiment == experiment
        db.execute(update(outcomes).where(mine, outcomes.c.id.in_(matched)).values(waits_until=None))
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
