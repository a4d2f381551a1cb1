"""Writes exposures: one row per unit, one more per later epoch in which the unit came, and the counts.

Replicas write in no order. So an exposure may come that is earlier than those that are stored of its unit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, delete, select, update

from service.experiments.definition.epochs import counts_of, epoch_of
from service.experiments.storage import upserts
from service.experiments.storage.schema import epoch_counts, exposure_counts, exposures, returns

Counts = Counter[tuple[str, str, str]]
"""Units by experiment, label of the count (epochs.py) and arm."""


def add(db: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Store the exposures, given as rows of their table. Return how many units are new."""
    # Sorted, so that two replicas lock rows in the same order and cannot deadlock.
    rows = sorted(rows, key=lambda row: (row["experiment"], row["unit"], row["time"]))
    new: Counter[tuple[str, str]] = Counter()
    counted: Counts = Counter()
    known: list[dict[str, Any]] = []
    statement = upserts.insert_new(db, exposures).returning(
        exposures.c.experiment, exposures.c.unit, exposures.c.epoch, exposures.c.arm
    )
    for chunk in upserts.chunks(rows):
        added = {(row.experiment, row.unit): row for row in db.execute(statement, chunk)}
        new.update((row.experiment, row.arm) for row in added.values())
        counted.update((row.experiment, row.epoch, row.arm) for row in added.values())
        known += [row for row in chunk if _key(row) not in added or added[_key(row)].epoch != row["epoch"]]
    # After all inserts, for the same reason.
    for chunk in upserts.chunks(known):
        counted.update(_add_to_known(db, chunk))
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
            {
                "experiment": e,
                "epoch": label,
                "arm": a,
                "units": n,
                "since": since.get((e, epoch_of(label)), 0.0),
            }
            for (e, label, a), n in sorted(counted.items())
            if n
        ],
    )
    return new.total()


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["experiment"], row["unit"]


def _add_to_known(db: Connection, rows: Sequence[dict[str, Any]]) -> Counts:
    """Store exposures of units that have a row already. Return what this changes in the counts."""
    times: dict[str, dict[str, dict[str, float]]] = {}  # by experiment, unit and epoch
    for row in rows:  # in order of time
        by_unit = times.setdefault(row["experiment"], {})
        by_unit.setdefault(row["unit"], {}).setdefault(row["epoch"], row["time"])
    counted: Counts = Counter()
    for experiment, by_unit in times.items():
        stored = _stored(db, experiment, by_unit)
        changed = [unit for unit, (_, before) in stored.items() if _merged(before, by_unit[unit]) != before]
        if not changed:
            continue
        locked = _stored(db, experiment, changed, lock=True)
        after = {unit: _merged(before, by_unit[unit]) for unit, (_, before) in locked.items()}
        _rewrite(db, experiment, {unit: before for unit, (_, before) in locked.items()}, after)
        for unit, (arm, before) in locked.items():
            counted.update((experiment, label, arm) for label in counts_of(_in_order(after[unit])))
            counted.subtract((experiment, label, arm) for label in counts_of(_in_order(before)))
    return counted


def _stored(
    db: Connection, experiment: str, units: Collection[str], *, lock: bool = False
) -> dict[str, tuple[str, dict[str, float]]]:
    """Return the arm of each unit, and its times by epoch, that of its row in `exposures` first."""

    def query(table: Table, *more: str) -> Any:
        columns = (table.c[name] for name in ("unit", "epoch", "time", *more))
        return select(*columns).where(table.c.experiment == experiment, table.c.unit.in_(sorted(units)))

    first = query(exposures, "arm").order_by(exposures.c.unit)
    stored = {
        row.unit: (row.arm, {row.epoch: row.time})
        for row in db.execute(first.with_for_update() if lock else first)
    }
    for row in db.execute(query(returns)):
        if row.unit in stored:
            stored[row.unit][1][row.epoch] = row.time
    return stored


def _merged(stored: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """Return the earliest time by epoch."""
    return dict(stored) | {epoch: min(time, stored.get(epoch, time)) for epoch, time in new.items()}


def _in_order(times: Mapping[str, float]) -> tuple[str, ...]:
    """Return the epochs in order of time."""
    return tuple(sorted(times, key=times.__getitem__))


def _rewrite(
    db: Connection,
    experiment: str,
    before: Mapping[str, Mapping[str, float]],
    after: Mapping[str, Mapping[str, float]],
) -> None:
    """Change the rows of units from their times before to those after. before: as `_stored` returns them."""
    new: list[dict[str, Any]] = []
    for unit, times in after.items():
        was_first, *returned = before[unit]
        first, *later = _in_order(times)
        key = {"experiment": experiment, "unit": unit}
        if (first, times[first]) != (was_first, before[unit][was_first]):
            _change(db, exposures, key, {"epoch": first, "time": times[first]})
        for epoch in later:
            if epoch not in returned:
                new.append(key | {"epoch": epoch, "time": times[epoch]})
            elif times[epoch] != before[unit][epoch]:
                _change(db, returns, key | {"epoch": epoch}, {"time": times[epoch]})
        if first in returned:
            _change(db, returns, key | {"epoch": first}, None)
    for chunk in upserts.chunks(new):
        db.execute(upserts.insert_new(db, returns), chunk)


def _change(db: Connection, table: Table, key: Mapping[str, str], values: Mapping[str, Any] | None) -> None:
    """Update the row of a key; None deletes it."""
    which = [table.c[name] == value for name, value in key.items()]
    db.execute(delete(table).where(*which) if values is None else update(table).where(*which).values(values))
