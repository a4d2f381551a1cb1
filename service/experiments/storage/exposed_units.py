"""Writes exposures: one row per unit, one more per later epoch in which the unit came, and the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select

from service.experiments.storage import upserts
from service.experiments.storage.schema import epoch_counts, exposure_counts, exposures, returns

Counted = tuple[str, str, str]
"""(experiment, epoch, arm) of a unit that is new in its epoch."""


def add(db: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Store the exposures, given as rows of their table. Return how many units are new."""
    # Sorted, so that two replicas lock rows in the same order and cannot deadlock.
    rows = sorted(rows, key=lambda row: (row["experiment"], row["unit"], row["time"]))
    new: Counter[tuple[str, str]] = Counter()
    counted: list[Counted] = []
    statement = upserts.insert_new(db, exposures).returning(
        exposures.c.experiment, exposures.c.unit, exposures.c.epoch, exposures.c.arm
    )
    for chunk in upserts.chunks(rows):
        added = {(row.experiment, row.unit): row for row in db.execute(statement, chunk)}
        new.update((row.experiment, row.arm) for row in added.values())
        counted += [(row.experiment, row.epoch, row.arm) for row in added.values()]
        known = [row for row in chunk if _key(row) not in added or added[_key(row)].epoch != row["epoch"]]
        counted += _add_returns(db, known)
    upserts.add_counts(
        db,
        exposure_counts,
        "units",
        [{"experiment": e, "arm": a, "units": n} for (e, a), n in sorted(new.items())],
    )
    since: dict[tuple[str, str], float] = {}
    for row in rows:
        epoch = row["experiment"], row["epoch"]
        since[epoch] = min(row["time"], since.get(epoch, row["time"]))
    upserts.add_counts(
        db,
        epoch_counts,
        "units",
        [
            {"experiment": e, "epoch": epoch, "arm": a, "units": n, "since": since[e, epoch]}
            for (e, epoch, a), n in sorted(Counter(counted).items())
        ],
    )
    return new.total()


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["experiment"], row["unit"]


def _add_returns(db: Connection, rows: Sequence[dict[str, Any]]) -> list[Counted]:
    """Store exposures of units that have a row already but are new in their epoch."""
    first: dict[tuple[str, str], Any] = {}
    for experiment in sorted({row["experiment"] for row in rows}):
        units = sorted({row["unit"] for row in rows if row["experiment"] == experiment})
        query = select(exposures.c.unit, exposures.c.epoch, exposures.c.arm).where(
            exposures.c.experiment == experiment, exposures.c.unit.in_(units)
        )
        first.update({(experiment, row.unit): row for row in db.execute(query)})
    later = [
        {name: row[name] for name in ("experiment", "unit", "epoch", "time")}
        for row in rows
        if (exposure := first.get(_key(row))) is not None and exposure.epoch != row["epoch"]
    ]
    if not later:
        return []
    statement = upserts.insert_new(db, returns).returning(
        returns.c.experiment, returns.c.unit, returns.c.epoch
    )
    return [
        (row.experiment, row.epoch, first[row.experiment, row.unit].arm)
        for row in db.execute(statement, later)
    ]
