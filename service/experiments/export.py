"""Reads the rows of an experiment in pages, as warehouses want them: who, when, which experiment and arm."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Row, case, func, select

from headroom.service.descriptions import documented
from headroom.service.experiments.clicks import Shown, with_lists
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import clicks, exposures, impressions, outcomes

PAGE_ROWS = 2_000
MAX_ROW = 2**63 - 1
"""The largest number of a row that a database counts."""

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
    names = (experiment, "") if source == "clicks" else (experiment,)
    columns = [column for column in table.c if column.name not in ("ids", "arm")]
    arm = table.c.arm if table is exposures else _arm_of(table.c.unit, experiment)
    query = select(*columns, arm.label("variation_id")).where(table.c.experiment.in_(names))
    query = query.where(table.c.number > int(after or 0)).order_by(table.c.number).limit(limit)
    with store.read_in_order() as db:
        found: Sequence[Any] = db.execute(query).all()
        clicked = _clicked(db, [row.number for row in found], experiment) if source == "clicks" else {}
    rows = [
        _values(row, source, experiment) | clicked.get(row.number, {})
        for row in found
        if source != "clicks" or row.number in clicked
    ]
    return Page(
        [[values.get(name) for name in COLUMNS] for values in rows],
        str(found[-1].number) if len(found) == limit else None,
    )


def _clicked(db: Connection, numbers: Sequence[int], experiment: str) -> Mapping[int, dict[str, Any]]:
    """Return the lists and titles of the clicks of an experiment, by number.

    A click that names no experiment, and fits no list of this one, is missing. The title is None if its list
    is not stored or did not show it.
    """
    clicked = {}
    for rows in with_lists(db, clicks.c.number.in_(numbers), experiment):
        click = rows[0]
        if click.list_experiment == experiment:
            index = Shown.of(click).index_of(click.clicked_index, click.rank, click.object_id)
            team = None if index is None else TEAMS.get(click.teams_by_index[index])
            clicked[click.number] = {"impression": click.impression, "index": index, "team": team}
        elif click.experiment == experiment:
            clicked[click.number] = {"impression": click.list_id, "index": None}
    return clicked


def _arm_of(unit: ColumnElement[str], experiment: str) -> ColumnElement[str]:
    """Return a unit's arm: null without an exposure, or with several arms."""
    arm = select(case((func.count() == 1, func.min(exposures.c.arm))))
    return arm.where(exposures.c.experiment == experiment, exposures.c.unit == unit).scalar_subquery()


def _values(row: Row[Any], source: Source, experiment: str) -> dict[str, Any]:
    """Return a row's values by the names of COLUMNS, and others."""
    values = dict(row._mapping)
    kind = "outcome" if source == "clicks" else source.removesuffix("s")
    values |= {"experiment_id": experiment, "timestamp": row.time, "kind": kind}
    if source == "impressions":
        shown = [row.teams_by_index[place] for place in json.loads(row.places)]
        values |= {"id": None, "impression": row.id, "teams": "".join(shown)}
    return values
