"""Writes which units were exposed: a row per unit, one more for each later epoch it came in, and counts."""

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
    """Stores the exposures, as rows of their table; returns how many units were not there yet."""
    # Sorted: two replicas that wait for each other's rows must do so in the same order.
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
    """Stores exposures of units that have a row, where they are new in their epoch."""
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
        if (found := first.get(_key(row))) is not None and found.epoch != row["epoch"]
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
