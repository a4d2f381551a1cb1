"""Stores outcomes, says of each what becomes of it, and settles those that came before their exposure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection, delete, exists, select, update

from service.experiments.definition import ExperimentConfig
from service.experiments.events import Outcome, UnknownOutcome, values_of
from service.experiments.tables import exposures, insert_new, outcomes

MAX_LISTED = 10
"""Names of metrics in a message, at most."""


def sort_out(
    rows: Sequence[Outcome], configs: Collection[ExperimentConfig]
) -> tuple[list[Outcome], list[UnknownOutcome]]:
    """Return the outcomes of known experiments and metrics, and those of unknown ones.

    configs: the known experiments; one without metrics takes any.
    """
    known: list[Outcome] = []
    unknown: list[UnknownOutcome] = []
    sources = {
        config.name: {source for metric in config.metrics for source in metric.sources} for config in configs
    }
    for index, row in enumerate(rows):
        declared = sources.get(row.experiment)
        if declared is None:
            message = f"there is no experiment {row.experiment!r}"
            unknown.append(UnknownOutcome(index, row.id, "experiment", message))
        elif declared and row.metric not in declared:
            names = ", ".join(sorted(declared)[:MAX_LISTED]) + (", …" if len(declared) > MAX_LISTED else "")
            message = f"{row.experiment!r} has no metric {row.metric!r}; it has {names}"
            unknown.append(UnknownOutcome(index, row.id, "metric", message))
        else:
            known.append(row)
    return known, unknown


def record(
    db: Connection, rows: Sequence[Outcome], waits_until: Callable[[Outcome], float]
) -> tuple[int, int]:
    """Store outcomes of known experiments. Return how many are new, and how many of these lack an exposure.

    waits_until: returns the time until which an outcome without an exposure is kept.
    """
    exposed = _exposed_units(db, rows)
    values = {
        (row.experiment, row.id): values_of(row)
        | {"waits_until": None if (row.experiment, row.unit) in exposed else waits_until(row)}
        for row in reversed(rows)  # of two with one id, the first counts
    }
    statement = insert_new(db, outcomes).returning(outcomes.c.waits_until)
    # Sorted, so that two calls cannot deadlock.
    new = db.scalars(statement, [values[key] for key in sorted(values)]).all()
    return len(new), sum(until is not None for until in new)


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
