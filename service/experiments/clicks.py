"""Joins clicks with the lists that they are on. The order in which both arrived makes no difference."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    FromClause,
    Row,
    Select,
    and_,
    case,
    func,
    or_,
    select,
    union_all,
)

from headroom.service.experiments.estimates import Floats
from headroom.service.experiments.events import UnmatchedReason
from headroom.service.experiments.interleaving import CONTROL, NOT_SHOWN, TREATMENT
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.tables import clicks, impressions

ROWS_AT_ONCE = 50
"""Rows in memory while the clicks are read; the ids of one list may take 1 MB."""

LIST = np.dtype([("unit", "i8"), ("shown", "f8"), ("differs", "?")])
"""A list of an exposed unit.

unit: an index of `Facts.units`. shown: when the list was first shown, in Unix seconds. differs: whether a
title belongs to an arm.
"""

CLICK = np.dtype([("unit", "i8"), ("shown", "f8"), ("clicked", "f8"), ("sign", "f8")])
"""A title of an arm that was clicked on a list. unit, shown: of the list.

clicked: when it was first clicked, in Unix seconds. sign: 1 for the treatment's titles, -1 for control's.
"""

SIGNS = {CONTROL: -1.0, TREATMENT: 1.0}

Rows = NDArray[np.void]
Condition = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Shown:
    """The titles of a list. teams_by_index: a letter for each title. places: JSON. ids: JSON, or None."""

    teams_by_index: str
    places: str
    ids: str | None = None

    @classmethod
    def of(cls, row: Row[Any]) -> Self:
        """Return the list of a row of `with_lists`."""
        return cls(row.teams_by_index, row.places, row.ids)

    def index_of(self, index: int | None, rank: int | None, object_id: str | None) -> int | None:
        """Return the index of the clicked title in the request; None if the list did not show it.

        index, rank, object_id: what a click names. If the request sent ids, the object id decides; of several
        titles with this id, the rank does. Else the rank decides alone.
        """
        if index is None:
            places = orjson.loads(self.places)
            at_rank = places[rank - 1] if rank is not None and 1 <= rank <= len(places) else None
            alike = self.with_id(object_id)
            index = at_rank if alike is None or at_rank in alike else None
            if alike is not None and len(alike) == 1:
                index = alike[0]
        if index is None or not 0 <= index < len(self.teams_by_index):
            return None
        return None if self.teams_by_index[index] == NOT_SHOWN else index

    def with_id(self, object_id: str | None) -> Sequence[int] | None:
        """Return the shown titles with an id; None if no ids are compared."""
        if object_id is None or self.ids is None:
            return None
        of_titles = orjson.loads(self.ids)
        return [place for place in orjson.loads(self.places) if of_titles[place] == object_id]


@dataclass(frozen=True, slots=True)
class Interleaved:
    """The lists that the units of an experiment saw, and their clicks.

    lists: (lists,) LIST. clicks: by metric, (titles,) CLICK. unmatched: clicks that are on no shown title, by
    reason.
    """

    lists: Rows
    clicks: Mapping[str, Rows]
    unmatched: Mapping[str, int]

    def until(self, moment: float, exposed: Floats) -> Self:
        """Return the lists of the units exposed by a time, and the clicks, up to then. exposed: (units,)."""

        def is_past(rows: Rows) -> NDArray[np.bool_]:
            return np.asarray(np.maximum(rows["shown"], exposed[rows["unit"]]) <= moment)

        clicks = {
            metric: rows[is_past(rows) & (rows["clicked"] <= moment)] for metric, rows in self.clicks.items()
        }
        return replace(self, lists=self.lists[is_past(self.lists)], clicks=clicks)


def read_interleaved(db: Connection, experiment: Experiment, units: Mapping[str, int]) -> Interleaved:
    """Read the lists of an experiment's exposed units, and the clicks on them. units: the index of each."""
    config = experiment.config
    lists = [
        (unit, row.shown, row.differs)
        for row in db.execute(_lists(config.name).execution_options(yield_per=ROWS_AT_ONCE))
        if (unit := units.get(row.unit)) is not None
    ]
    unmatched: Counter[str] = Counter()
    titles: dict[str, dict[tuple[str, int], Any]] = {metric.name: {} for metric in config.metrics}
    is_its = and_(clicks.c.experiment.in_((config.name, "")), clicks.c.metric.in_(sorted(titles)))
    for rows in with_lists(db, is_its, config.name):
        click = rows[0]
        own = [row for row in rows if row.list_experiment == config.name]
        if not own:
            unmatched.update(_reason(click, experiment))
            continue
        index = Shown.of(click).index_of(click.clicked_index, click.rank, click.object_id)
        if len({row.content for row in own}) > 1:
            unmatched["impression"] += 1
        elif index is None:
            unmatched["index"] += 1
        elif click.unit in units and click.teams_by_index[index] in SIGNS:
            shown = min(row.shown for row in own)
            sign = SIGNS[click.teams_by_index[index]]
            title = (units[click.unit], shown, click.time, sign)
            titles[click.metric].setdefault((click.impression, index), title)
    by_metric = {name: np.array(list(of_metric.values()), CLICK) for name, of_metric in titles.items()}
    return Interleaved(np.array(lists, LIST), by_metric, dict(unmatched))


def _reason(click: Row[Any], experiment: Experiment) -> Sequence[UnmatchedReason]:
    """Return why a click is on no list of its unit in an experiment; nothing if it may be another's.

    click: a row of `with_lists`. A click that names no experiment, and fits no list of any, counts in every
    experiment that interleaves with its metric, from its start to its end.
    """
    is_on_others = click.list_experiment is not None or click.named == "elsewhere"
    is_during = experiment.started <= click.time < experiment.end
    if click.experiment == "" and (is_on_others or not is_during):
        return ()
    return ("unit",) if click.named == "here" else ("impression",)


def with_lists(db: Connection, where: Condition, experiment: str = "") -> Iterator[Sequence[Row[Any]]]:
    """Yield clicks with the stored lists of their unit that they name: a row per list, or one without any.

    Earlier clicks come first; of a click's lists, those of `experiment`, and then those stored first.
    where: which clicks. A click that names no experiment may be on lists of several.
    Without a list of the unit, `named` says where another unit's has the name: `here`, which is in
    `experiment`, or `elsewhere`; None: nowhere.
    """
    lists = impressions
    other = impressions.alias()
    is_here = case((other.c.experiment == experiment, "here"), else_="elsewhere")
    named = select(func.max(is_here)).where(_may_be_on(other)).scalar_subquery()
    needs_ids = clicks.c.object_id.is_not(None)
    matches = matches_of(where).subquery()
    query = (
        select(
            clicks.c.number,
            clicks.c.experiment,
            clicks.c.id,
            clicks.c.unit,
            clicks.c.metric,
            clicks.c.value,
            clicks.c.time,
            clicks.c.list_id,
            clicks.c.index.label("clicked_index"),
            clicks.c.rank,
            clicks.c.object_id,
            lists.c.experiment.label("list_experiment"),
            lists.c.id.label("impression"),
            lists.c.content,
            lists.c.teams_by_index,
            case((clicks.c.index.is_(None), lists.c.places), else_="[]").label("places"),
            case((needs_ids, lists.c.ids)).label("ids"),
            lists.c.time.label("shown"),
            case((lists.c.number.is_(None), named)).label("named"),
        )
        .select_from(
            clicks.outerjoin(matches, matches.c.click == clicks.c.number).outerjoin(
                lists, lists.c.number == matches.c.list
            )
        )
        .where(where)
        .order_by(clicks.c.time, clicks.c.number, lists.c.experiment != experiment, lists.c.number)
    )
    rows: Iterable[Row[Any]] = db.execute(query.execution_options(yield_per=ROWS_AT_ONCE))
    for _, of_click in groupby(rows, key=lambda row: row.number):
        yield list(of_click)


def matches_of(where: Condition) -> CompoundSelect[Any]:
    """Return the query of which click, by its number, names which list of its unit.

    where: which clicks and lists.

    Two joins by equality: by `_may_be_on`, which has an OR, PostgreSQL compares all clicks of a unit with all
    of its lists, and a unit may be a program with tens of thousands of both.
    """
    lists = impressions
    is_own = and_(lists.c.unit == clicks.c.unit, _is_of_its_experiment(lists))
    by_id = lists.c.id == clicks.c.list_id
    by_query = lists.c.query_id == clicks.c.list_id
    return union_all(
        *(
            select(clicks.c.number.label("click"), lists.c.number.label("list"))
            .select_from(clicks.join(lists, and_(is_named, is_own)))
            .where(where)
            for is_named in (by_id, by_query)
        )
    )


def _may_be_on(lists: FromClause) -> Condition:
    """Return the condition that a click names a list, and no other experiment than the list's."""
    is_named = or_(lists.c.id == clicks.c.list_id, lists.c.query_id == clicks.c.list_id)
    return and_(is_named, _is_of_its_experiment(lists))


def _is_of_its_experiment(lists: FromClause) -> Condition:
    return or_(clicks.c.experiment == "", clicks.c.experiment == lists.c.experiment)


def _lists(experiment: str) -> Select[Any]:
    """Return the query of the lists of an experiment, each content of an id as one."""
    has_team = or_(*(impressions.c.teams_by_index.contains(team) for team in (CONTROL, TREATMENT)))
    return (
        select(
            impressions.c.unit,
            func.min(impressions.c.time).label("shown"),
            func.max(case((has_team, 1), else_=0)).label("differs"),
        )
        .where(impressions.c.experiment == experiment)
        .group_by(impressions.c.id, impressions.c.content, impressions.c.unit)
    )
