"""Reads the rows of an experiment in pages, as warehouses want them: who, when, which experiment and arm."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import Column, FromClause, Row, Select, Table, and_, select

from headroom.service.descriptions import documented
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
    """Return the rows of one kind that follow `after`. Raises DatabaseUnavailable."""
    key, query = _queries()[source]
    query = query.where(key.table.c.experiment == experiment, key > after).order_by(key).limit(limit)
    with store.read() as db:
        found = list(db.execute(query.add_columns(key.label("key"))))
    rows = [[_value(row, experiment, source, name) for name in COLUMNS] for row in found]
    return Page(rows, found[-1].key if len(found) == limit else None)


def _queries() -> dict[Source, tuple[Column[Any], Select[Any]]]:
    """Return each kind's key, which is unique within an experiment, and its query."""
    shown = impressions.c.teams_by_index, impressions.c.places
    of_impression = and_(
        impressions.c.experiment == clicks.c.experiment, impressions.c.id == clicks.c.impression
    )
    clicked = _with_arm(clicks).outerjoin(impressions, of_impression)
    return {
        "exposures": (exposures.c.unit, select(exposures)),
        "impressions": (
            impressions.c.id,
            select(*_all_but_ids(), exposures.c.arm).select_from(_with_arm(impressions)),
        ),
        "outcomes": (outcomes.c.id, select(outcomes, exposures.c.arm).select_from(_with_arm(outcomes))),
        "clicks": (clicks.c.id, select(clicks, exposures.c.arm, *shown).select_from(clicked)),
    }


def _all_but_ids() -> list[Column[Any]]:
    return [column for column in impressions.c if column is not impressions.c.ids]


def _with_arm(table: Table) -> Any:
    """Return a join of rows with the exposures of their units, if these have any."""
    of_unit = and_(exposures.c.experiment == table.c.experiment, exposures.c.unit == table.c.unit)
    joined: FromClause = table.outerjoin(exposures, of_unit)
    return joined


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
            return row._mapping["index"]
        case "team" if source == "clicks" and row.teams_by_index is not None:
            return TEAMS.get(row.teams_by_index[row._mapping["index"]])
        case "teams" if source == "impressions":
            return "".join(row.teams_by_index[place] for place in json.loads(row.places))
        case "index" | "team" | "teams":
            return None
        case _:
            return row._mapping.get(name)
