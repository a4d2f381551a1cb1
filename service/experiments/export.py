"""Reads the rows of an experiment in pages, as warehouses want them: who, when, which experiment and arm."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Row, Select, Table, and_, case, func, or_, select

from headroom.service.descriptions import documented
from headroom.service.experiments.clicks import Shown
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import clicks, exposures, impressions, outcomes

PAGE_ROWS = 2_000

Source = Literal["exposures", "impressions", "outcomes", "clicks"]
SOURCES: Sequence[Source] = get_args(Source)

COLUMNS = (
    "unit",
    "timestamp",
    "experiment_id",
    "variation_id",
    "kind",
    "id",
    "metric",
    "value",
    "impression",
    "index",
    "team",
    "teams",
    "config_version",
    "query_id",
)
"""The columns of a row.

timestamp: Unix seconds. variation_id: the unit's arm; None for an outcome of a unit that was not exposed.
kind: `exposure`, `impression` (an interleaved list) or `outcome` (a click on one is an outcome, too).
index: of the clicked title in the request. team: of the clicked title, `control`, `treatment` or `shared`.
teams: of an impression's titles in the order shown, `c`, `t` or `s` each.
query_id: the caller's own id of an impression.
"""

TABLES = {"exposures": exposures, "impressions": impressions, "outcomes": outcomes, "clicks": clicks}

TEAMS = {"c": "control", "t": "treatment", "s": "shared"}


@documented
@dataclass(frozen=True, slots=True)
class Page:
    """A page of the rows of an experiment."""

    rows: Sequence[Sequence[Any]]
    """The rows, each in the order of `columns`."""
    next: str | None
    """What to pass as `after` for the next page; null after the last."""
    columns: Sequence[str] = COLUMNS
    """The columns' names."""


def page(store: Store, experiment: str, source: Source, after: str = "", limit: int = PAGE_ROWS) -> Page:
    """Return the rows of one kind that follow `after`, in the order in which they were stored.

    Rows that are stored meanwhile come last. Raises DatabaseUnavailable.
    after: `next` of the page before; "" begins.
    """
    table = TABLES[source]
    query = _clicks(experiment) if source == "clicks" else _rows(table, experiment)
    query = query.where(table.c.number > int(after or 0)).order_by(table.c.number).limit(limit)
    with store.read_in_order() as db:
        found = list(db.execute(query))
    rows = [_values(row, source, experiment) for row in found]
    return Page(
        [[values.get(name) for name in COLUMNS] for values in rows],
        str(found[-1].number) if len(found) == limit else None,
    )


def _rows(table: Table, experiment: str) -> Select[Any]:
    """Return the query of the rows of an experiment with the arms of their units."""
    columns = [column for column in table.c if column.name not in ("ids", "arm")]
    arm = table.c.arm if table is exposures else _arm_of(table.c.unit, experiment)
    return select(*columns, arm.label("variation_id")).where(table.c.experiment == experiment)


def _clicks(experiment: str) -> Select[Any]:
    """Return the query of the clicks that name an experiment, or none and a list of it, with their lists."""
    candidate = impressions.alias()
    names_it = or_(candidate.c.id == clicks.c.list_id, candidate.c.query_id == clicks.c.list_id)
    is_units = and_(candidate.c.experiment == experiment, candidate.c.unit == clicks.c.unit)
    its_list = select(func.min(candidate.c.number)).where(names_it, is_units).scalar_subquery()
    is_on_list = and_(clicks.c.experiment == "", impressions.c.number.is_not(None))
    return (
        select(
            *clicks.c,
            _arm_of(clicks.c.unit, experiment).label("variation_id"),
            func.coalesce(impressions.c.id, clicks.c.list_id).label("impression"),
            impressions.c.teams_by_index,
            impressions.c.places,
            impressions.c.ids,
        )
        .select_from(clicks.outerjoin(impressions, impressions.c.number == its_list))
        .where(or_(clicks.c.experiment == experiment, is_on_list))
    )


def _arm_of(unit: ColumnElement[str], experiment: str) -> ColumnElement[str]:
    """Return a unit's arm: null without an exposure, or with several arms."""
    arm = select(case((func.count() == 1, func.min(exposures.c.arm))))
    return arm.where(exposures.c.experiment == experiment, exposures.c.unit == unit).scalar_subquery()


def _values(row: Row[Any], source: Source, experiment: str) -> dict[str, Any]:
    """Return a row's values by the names of COLUMNS, and others."""
    values = dict(row._mapping)
    values |= {"experiment_id": experiment, "timestamp": row.time, "kind": source.removesuffix("s")}
    if source == "impressions":
        shown = [row.teams_by_index[place] for place in json.loads(row.places)]
        values |= {"id": None, "impression": row.id, "teams": "".join(shown)}
    elif source == "clicks":
        index = _clicked_index(row)
        team = None if index is None else TEAMS.get(row.teams_by_index[index])
        values |= {"kind": "outcome", "index": index, "team": team}
    return values


def _clicked_index(row: Row[Any]) -> int | None:
    """Return the index of the clicked title in its list; None if its list is missing or did not show it."""
    if row.teams_by_index is None:
        return None
    shown = Shown(row.teams_by_index, row.places, row.ids)
    return shown.index_of(row._mapping["index"], row.rank, row.object_id)
