"""Writes exposures: one row per unit, one more per later epoch in which the unit came, and the counts.

Replicas write in no order. So an exposure may come that is earlier than those that are stored of its unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, select, update

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
    known: list[dict[str, Any]] = []
    statement = upserts.insert_new(db, exposures).returning(
        exposures.c.experiment, exposures.c.unit, exposures.c.epoch, exposures.c.arm
    )
    for chunk in upserts.chunks(rows):
        added = {(row.experiment, row.unit): row for row in db.execute(statement, chunk)}
        new.update((row.experiment, row.arm) for row in added.values())
        counted += [(row.experiment, row.epoch, row.arm) for row in added.values()]
        known += [row for row in chunk if _key(row) not in added or added[_key(row)].epoch != row["epoch"]]
    for chunk in upserts.chunks(known):
        counted += _add_returns(db, chunk)
    # After all inserts, for the same reason.
    for chunk in upserts.chunks(known):
        _move_back(db, chunk)
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


def _move_back(db: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Give units that are stored the times of these exposures, if they are earlier."""
    times: dict[str, dict[str, dict[str, float]]] = {}  # by experiment, unit and epoch
    for row in rows:  # in order of time
        by_unit = times.setdefault(row["experiment"], {})
        by_unit.setdefault(row["unit"], {}).setdefault(row["epoch"], row["time"])
    for experiment, by_unit in times.items():
        stored = _stored(db, experiment, by_unit)
        late = [unit for unit in stored if _changes(stored[unit], by_unit[unit])]
        if not late:
            continue
        for unit, locked in _stored(db, experiment, late, lock=True).items():
            for table, epoch, values in _changes(locked, by_unit[unit]):
                which = table.c.experiment == experiment, table.c.unit == unit, table.c.epoch == epoch
                db.execute(update(table).where(*which).values(values))


def _stored(
    db: Connection, experiment: str, units: Collection[str], *, lock: bool = False
) -> dict[str, dict[str, float]]:
    """Return the stored times by unit and epoch. The epoch of a unit's row in `exposures` comes first."""

    def query(table: Table) -> Any:
        columns = table.c.unit, table.c.epoch, table.c.time
        return select(*columns).where(table.c.experiment == experiment, table.c.unit.in_(sorted(units)))

    first = query(exposures).order_by(exposures.c.unit)
    times = {
        row.unit: {row.epoch: row.time} for row in db.execute(first.with_for_update() if lock else first)
    }
    for row in db.execute(query(returns)):
        if row.unit in times:
            times[row.unit][row.epoch] = row.time
    return times


def _changes(
    stored: Mapping[str, float], new: Mapping[str, float]
) -> list[tuple[Table, str, dict[str, str | float]]]:
    """Return the rows of a unit that change, by table and epoch, with their new values.

    stored: its times by epoch, that of its row in `exposures` first. new: times of further exposures.
    """
    times = {epoch: min(time, new.get(epoch, time)) for epoch, time in stored.items()}
    was_first, *returned = stored
    first = min(times, key=times.__getitem__)
    after = [(exposures, was_first, first)]
    after += [(returns, epoch, was_first if epoch == first else epoch) for epoch in returned]
    return [
        (table, before, {"epoch": epoch, "time": times[epoch]})
        for table, before, epoch in after
        if epoch != before or times[epoch] != stored[before]
    ]
