"""Reads the rows of an experiment in pages, as warehouses want them: who, when, which experiment and arm."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import Column, ColumnElement, Label, Row, Select, Table, and_, case, func, or_, select

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
    table, query = _queries(experiment)[source]
    last = int(after or 0)
    query = query.where(table.c.number > last).order_by(table.c.number).limit(limit)
    with store.read_in_order() as db:
        found = list(db.execute(query))
    rows = [[_value(row, experiment, source, name) for name in COLUMNS] for row in found]
    return Page(rows, str(found[-1].number) if len(found) == limit else None)


def _queries(experiment: str) -> dict[Source, tuple[Table, Select[Any]]]:
    """Return each kind's table, and the query of its rows."""

    def of(table: Table, *columns: ColumnElement[Any]) -> Select[Any]:
        return select(*columns).where(table.c.experiment == experiment)

    return {
        "exposures": (exposures, of(exposures, *exposures.c)),
        "impressions": (impressions, of(impressions, *_all_but_ids(), _arm_of(impressions))),
        "outcomes": (outcomes, of(outcomes, *outcomes.c, _arm_of(outcomes))),
        "clicks": (clicks, _clicks(experiment)),
    }


def _clicks(experiment: str) -> Select[Any]:
    """Return the query of the clicks that name an experiment, or none and a list of it, with their lists."""
    of_unit = and_(exposures.c.experiment == experiment, exposures.c.unit == clicks.c.unit)
    arm = select(case((func.count() == 1, func.min(exposures.c.arm)))).where(of_unit)
    candidate = impressions.alias()
    names_it = or_(candidate.c.id == clicks.c.list_id, candidate.c.query_id == clicks.c.list_id)
    is_units = and_(candidate.c.experiment == experiment, candidate.c.unit == clicks.c.unit)
    its_list = select(func.min(candidate.c.number)).where(names_it, is_units).scalar_subquery()
    is_on_list = and_(clicks.c.experiment == "", impressions.c.number.is_not(None))
    return (
        select(
            *clicks.c,
            arm.scalar_subquery().label("arm"),
            func.coalesce(impressions.c.id, clicks.c.list_id).label("impression"),
            impressions.c.teams_by_index,
            impressions.c.places,
            impressions.c.ids,
        )
        .select_from(clicks.outerjoin(impressions, impressions.c.number == its_list))
        .where(or_(clicks.c.experiment == experiment, is_on_list))
    )


def _all_but_ids() -> list[Column[Any]]:
    return [column for column in impressions.c if column is not impressions.c.ids]


def _arm_of(table: Table) -> Label[Any]:
    """Return the arm of a row's unit: null without an exposure, or with several arms."""
    of_unit = and_(exposures.c.experiment == table.c.experiment, exposures.c.unit == table.c.unit)
    arm = select(case((func.count() == 1, func.min(exposures.c.arm)))).where(of_unit)
    return arm.scalar_subquery().label("arm")


def _value(row: Row[Any], experiment: str, source: Source, name: str) -> Any:
    """Return a row's value of one of COLUMNS."""
    match name:
        case "timestamp":
            return row.time
        case "experiment_id":
            return experiment
        case "variation_id":
            return row.arm
        case "kind":
            return "outcome" if source == "clicks" else source.removesuffix("s")
        case "id" if source == "impressions":
            return None
        case "impression" if source == "impressions":
            return row.id
        case "index" if source == "clicks":
            return _clicked_index(row)
        case "team" if source == "clicks":
            index = _clicked_index(row)
            return None if index is None else TEAMS.get(row.teams_by_index[index])
        case "teams" if source == "impressions":
            return "".join(row.teams_by_index[place] for place in json.loads(row.places))
        case "index" | "team" | "teams":
            return None
        case _:
            return row._mapping.get(name)


def _clicked_index(row: Row[Any]) -> int | None:
    """Return the index of the clicked title in its list; None if its list is missing or did not show it."""
    if row.teams_by_index is None:
        return None
    shown = Shown(row.teams_by_index, row.places, row.ids)
    return shown.index_of(row._mapping["index"], row.rank, row.object_id)
