"""Adds and deletes the facts of experiments: exposures, lists, shadow results, outcomes and clicks.

Each function works in the transaction of its connection. Rows are sorted before they are written, so that two
replicas lock them in the same order and cannot deadlock.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import orjson
from sqlalchemy import Connection, and_, insert, or_, select

from headroom.service.experiments import tables
from headroom.service.experiments.clicks import matches_of
from headroom.service.experiments.database import may_delete
from headroom.service.experiments.events import Exposure, Impression, ShadowResult, values_of
from headroom.service.experiments.tables import clicks, exposures, impressions, outcomes, unit_counts

Fact = Exposure | Impression | ShadowResult
"""What a replica stores in the background."""

DELETED_AT_ONCE = 5_000
"""Rows of a table that one call of `delete_some` deletes, at most, so that no other write waits long."""


def add(db: Connection, rows: Sequence[Fact]) -> Counter[tuple[str, str]]:
    """Store exposures, lists and shadow results. Return how many units are new, by experiment and arm.

    A list that is stored already is left out. Shadow results have no key, so the same again are stored again.
    """
    lists = [_list_values(row) for row in rows if isinstance(row, Impression)]
    shadow = [values_of(row) for row in rows if isinstance(row, ShadowResult)]
    new = _add_exposures(db, [values_of(row) for row in rows if isinstance(row, Exposure)])
    if lists:
        lists.sort(key=lambda row: (row["experiment"], row["id"]))
        db.execute(tables.insert_new(db, impressions), lists)
    if shadow:
        db.execute(insert(tables.shadow_results), shadow)
    return new


def _add_exposures(db: Connection, rows: Sequence[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """Store the exposures of units that are new to their arm. Return how many are, by experiment and arm.

    Replicas write in no order, so of several exposures of a unit to an arm the earliest stays.
    """
    if not rows:
        return Counter()
    rows = sorted(
        rows, key=lambda row: [row[name] for name in ("experiment", "unit", "arm", "time", "bucket")]
    )
    key = [exposures.c.experiment, exposures.c.unit, exposures.c.arm]
    add_new = tables.insert_new(db, exposures).returning(*key)
    new = {tuple(row) for row in db.execute(add_new, rows)}
    known = [row for row in rows if (row["experiment"], row["unit"], row["arm"]) not in new]
    if known:
        earlier = tables.insert(db, exposures)
        stays = earlier.excluded
        is_earlier = or_(
            stays.time < exposures.c.time,
            and_(stays.time == exposures.c.time, stays.bucket < exposures.c.bucket),
        )
        changed = {name: stays[name] for name in ("time", "bucket", "slot", "config_version")}
        db.execute(earlier.on_conflict_do_update(index_elements=key, set_=changed, where=is_earlier), known)
    counts = Counter((experiment, arm) for experiment, _, arm in new)
    if counts:
        add_units = tables.insert(db, unit_counts)
        add_units = add_units.on_conflict_do_update(
            index_elements=list(unit_counts.primary_key),
            set_={"units": unit_counts.c.units + add_units.excluded.units},
        )
        by_arm = sorted(counts.items())
        db.execute(
            add_units, [{"experiment": name, "arm": arm, "units": units} for (name, arm), units in by_arm]
        )
    return counts


def delete_some(db: Connection, experiment: str) -> bool:
    """Delete a portion of the outcomes, lists and clicks of an experiment. Return whether there may be more.

    A click that names no experiment goes with the last of its lists.
    """
    if not may_delete(db):
        return True
    deleted = [_delete_rows(db, table, experiment) for table in (clicks, outcomes)]
    deleted.append(_delete_lists(db, experiment))
    return max(deleted) == DELETED_AT_ONCE


def unmatched_clicks(db: Connection, before: float) -> Sequence[int]:
    """Return the numbers of a portion of the clicks that name neither an experiment nor a list of their unit.

    before: only those of an earlier time, in Unix seconds.
    """
    is_old = and_(clicks.c.experiment == "", clicks.c.time < before)
    on_lists = matches_of(is_old).subquery()
    joined = clicks.outerjoin(on_lists, on_lists.c.click == clicks.c.number)
    query = select(clicks.c.number).select_from(joined).where(is_old, on_lists.c.click.is_(None))
    return db.scalars(query.limit(DELETED_AT_ONCE)).all()


def delete_clicks(db: Connection, numbers: Sequence[int]) -> None:
    """Delete clicks by their numbers, unless another transaction deletes rows."""
    if may_delete(db):
        db.execute(clicks.delete().where(clicks.c.number.in_(numbers)))


def _list_values(row: Impression) -> dict[str, Any]:
    """Return a list as the table has it."""
    places = orjson.dumps(row.places).decode()
    ids = None if row.ids is None else orjson.dumps(row.ids).decode()
    content = sha256(orjson.dumps([row.teams_by_index, places, ids])).hexdigest()[:32]
    return values_of(row) | {"places": places, "ids": ids, "content": content}


def _delete_rows(db: Connection, table: Any, experiment: str) -> int:
    """Delete at most DELETED_AT_ONCE rows. Return how many were."""
    numbers = select(table.c.number).where(table.c.experiment == experiment).limit(DELETED_AT_ONCE)
    return int(db.execute(table.delete().where(table.c.number.in_(numbers))).rowcount)


def _delete_lists(db: Connection, experiment: str) -> int:
    """Delete lists, and first the clicks on them that name no experiment. Return how many lists were.

    Clicks that are on lists of other experiments, too, stay.
    """
    number = impressions.c.number
    first = select(number).where(impressions.c.experiment == experiment).order_by(number)
    first = first.limit(DELETED_AT_ONCE)
    on_lists = matches_of(and_(clicks.c.experiment == "", number.in_(first))).subquery()
    is_on_list = clicks.c.number.in_(select(on_lists.c.click))
    on_others = matches_of(and_(is_on_list, impressions.c.experiment != experiment)).subquery()
    is_on_other = clicks.c.number.in_(select(on_others.c.click))
    db.execute(clicks.delete().where(is_on_list, ~is_on_other))
    return int(db.execute(impressions.delete().where(number.in_(first))).rowcount)
