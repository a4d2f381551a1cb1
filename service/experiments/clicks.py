"""Joins clicks with the lists that they are on. The order in which both arrived makes no difference."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, and_, case, exists, func, or_, select

from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.interleaving import CONTROL, NOT_SHOWN, TREATMENT
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.tables import clicks, exposures, impressions

ROWS_AT_ONCE = 500
"""Rows in memory while the clicks are read; the ids of one list may take 1 MB."""

LIST = np.dtype([("unit", "i8"), ("shown", "f8"), ("known", "f8"), ("differs", "?")])
"""A list of an exposed unit.

unit: its number. shown: when the list was first shown, in Unix seconds. known: since when both this and the
unit's exposure lie in the past. differs: whether a title belongs to an arm.
"""

CLICK = np.dtype([("unit", "i8"), ("shown", "f8"), ("known", "f8"), ("clicked", "f8"), ("sign", "f8")])
"""A title of an arm that was clicked on a list; unit, shown and known as in LIST.

clicked: when it was first clicked, in Unix seconds. sign: 1 for the treatment's titles, -1 for control's.
"""

SIGNS = {CONTROL: -1.0, TREATMENT: 1.0}

Rows = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Shown:
    """The titles of a list, as `Impression` has them. places: JSON. ids: JSON, or None."""

    teams_by_index: str
    places: str
    ids: str | None = None

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
    """What the units of an experiment saw and clicked.

    lists: (lists,) LIST. clicks: by metric, (titles,) CLICK. unmatched: clicks that are on no shown title, by
    reason.
    """

    lists: Rows
    clicks: Mapping[str, Rows]
    unmatched: Mapping[str, int]


def read_interleaved(db: Connection, experiment: Experiment) -> Interleaved:
    """Read the lists of an experiment, and the clicks on them."""
    config = experiment.config
    numbers: dict[str, int] = {}
    lists = [
        (numbers.setdefault(row.unit, len(numbers)), row.shown, max(row.shown, row.exposed), row.differs)
        for row in db.execute(_lists(config.name).execution_options(yield_per=ROWS_AT_ONCE))
    ]
    unmatched = _unmatched(db, config, experiment.started)
    titles: dict[str, dict[tuple[str, int], Any]] = {metric.name: {} for metric in config.metrics}
    for rows in _by_click(db, config):
        click = rows[0]
        shown = Shown(click.teams_by_index, click.places, click.ids)
        index = shown.index_of(click.clicked_index, click.rank, click.object_id)
        if len({row.content for row in rows}) > 1:
            unmatched["impression"] += 1
        elif index is None:
            unmatched["index"] += 1
        elif click.exposed is not None and (sign := SIGNS.get(click.teams_by_index[index])) is not None:
            time = min(row.shown for row in rows)
            title = (numbers[click.unit], time, max(time, click.exposed), click.time, sign)
            titles[click.metric].setdefault((click.id, index), title)
    by_metric = {name: np.array(list(of_metric.values()), CLICK) for name, of_metric in titles.items()}
    return Interleaved(np.array(lists, LIST), by_metric, dict(unmatched))


def _unmatched(db: Connection, config: ExperimentConfig, started: float) -> Counter[str]:
    """Return the clicks that name no list of their unit, by reason.

    started: of the experiment. A click that names no experiment, and fits no list of any, counts in every
    experiment that interleaves with its metric, from its start on.
    """
    other = impressions.alias()
    names_it = or_(other.c.id == clicks.c.list_id, other.c.query_id == clicks.c.list_id)
    is_of_unit = other.c.unit == clicks.c.unit
    in_experiment = other.c.experiment == config.name
    is_matched = exists().where(names_it, is_of_unit, or_(in_experiment, clicks.c.experiment == ""))
    is_other_units = exists().where(names_it, in_experiment)
    is_another_experiments = exists().where(names_it)
    reason = case((is_other_units, "unit"), else_="impression")
    is_named = clicks.c.experiment == config.name
    is_unnamed = and_(
        clicks.c.experiment == "",
        clicks.c.time >= started,
        or_(is_other_units, ~is_another_experiments),
    )
    query = (
        select(reason.label("reason"), func.count().label("clicks"))
        .select_from(clicks)
        .where(clicks.c.metric.in_(_metrics(config)), or_(is_named, is_unnamed), ~is_matched)
        .group_by(reason)
    )
    return Counter({row.reason: int(row.clicks) for row in db.execute(query)})


def find_lists(db: Connection, names: Collection[str]) -> Mapping[str, list[Any]]:
    """Return the lists with these impression ids or query ids: experiment, unit, places, teams and ids."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    columns = (
        impressions.c.experiment,
        impressions.c.id,
        impressions.c.query_id,
        impressions.c.unit,
        impressions.c.teams_by_index,
        impressions.c.places,
        impressions.c.ids,
        impressions.c.content,
    )
    wanted = sorted(names)
    for row in db.execute(
        select(*columns).where(or_(impressions.c.id.in_(wanted), impressions.c.query_id.in_(wanted)))
    ):
        for name in {row.id, row.query_id} & set(wanted):
            found[name].append(row)
    return found


def _metrics(config: ExperimentConfig) -> list[str]:
    return sorted(metric.name for metric in config.metrics)


def _by_click(db: Connection, config: ExperimentConfig) -> Iterator[list[Any]]:
    """Yield the rows of each click that is on a list of its unit, one for each row of the list.

    Earlier clicks come first.
    """
    by_id = impressions.c.id == clicks.c.list_id
    by_query_id = and_(impressions.c.query_id == clicks.c.list_id, impressions.c.id != clicks.c.list_id)
    both = _joined(config, by_id).union_all(_joined(config, by_query_id)).subquery()
    query = select(both).order_by(both.c.time, both.c.number).execution_options(yield_per=ROWS_AT_ONCE)
    rows = db.execute(query)
    for _, of_click in groupby(rows, key=lambda row: row.number):
        yield list(of_click)


def _joined(config: ExperimentConfig, on: Any) -> Select[Any]:
    """Return the clicks with the lists of their unit that a condition joins them with."""
    of_list = and_(on, impressions.c.experiment == config.name, impressions.c.unit == clicks.c.unit)
    of_unit = and_(exposures.c.experiment == impressions.c.experiment, exposures.c.unit == impressions.c.unit)
    needs_ids = clicks.c.object_id.is_not(None)
    return (
        select(
            clicks.c.number,
            clicks.c.metric,
            clicks.c.time,
            clicks.c.index.label("clicked_index"),
            clicks.c.rank,
            clicks.c.object_id,
            impressions.c.id,
            impressions.c.unit,
            impressions.c.content,
            impressions.c.teams_by_index,
            case((clicks.c.index.is_(None), impressions.c.places), else_="[]").label("places"),
            case((needs_ids, impressions.c.ids)).label("ids"),
            impressions.c.time.label("shown"),
            exposures.c.time.label("exposed"),
        )
        .select_from(clicks.join(impressions, of_list).outerjoin(exposures, of_unit))
        .where(clicks.c.experiment.in_((config.name, "")), clicks.c.metric.in_(_metrics(config)))
    )


def _lists(experiment: str) -> Select[Any]:
    """Return the query of the lists of exposed units, each content of an id as one."""
    of_unit = and_(exposures.c.experiment == impressions.c.experiment, exposures.c.unit == impressions.c.unit)
    has_team = or_(*(impressions.c.teams_by_index.contains(team) for team in (CONTROL, TREATMENT)))
    return (
        select(
            impressions.c.unit,
            func.min(impressions.c.time).label("shown"),
            func.min(exposures.c.time).label("exposed"),
            func.max(case((has_team, 1), else_=0)).label("differs"),
        )
        .select_from(impressions.join(exposures, of_unit))
        .where(impressions.c.experiment == experiment)
        .group_by(impressions.c.id, impressions.c.content, impressions.c.unit)
    )
