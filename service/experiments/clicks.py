"""Joins clicks with the lists that they are on, and adds up whose titles the units clicked.

A unit's credit is (clicks on the treatment's titles − clicks on control's) / (both), over all its lists. A
click on a title that both arms share says nothing, and a unit without any other click has no credit.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, and_, case, exists, func, or_, select

from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.interleaving import CONTROL, NOT_SHOWN, TREATMENT
from headroom.service.experiments.tables import clicks, exposures, impressions

ROWS_AT_ONCE = 500
"""Rows in memory while the clicks are read; the ids of one list may take 1 MB."""

Floats = NDArray[np.float64]


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
class ClickSums:
    """One metric's clicks, added up.

    units: those with a value. total, squares: sums over them of the value and of its square.
    wins, losses, ties: units with a value above, below and at 0; they add up to `units`.
    impressions: lists that count. differing: those in which a title belongs to a team. viewers: units that
    saw a list that counts.
    """

    units: int = 0
    total: float = 0.0
    squares: float = 0.0
    wins: int = 0
    losses: int = 0
    ties: int = 0
    impressions: int = 0
    differing: int = 0
    viewers: int = 0


@dataclass(frozen=True, slots=True)
class Credits:
    """The clicks of one metric on titles of one arm, each title of a list once. All arrays are (clicks,).

    unit: a number for each unit. exposed, shown, clicked: when the unit was exposed, its list was first
    shown, and the title first clicked, in Unix seconds. sign: 1 for the treatment's, −1 for control's.
    """

    unit: NDArray[np.int64]
    exposed: Floats
    shown: Floats
    clicked: Floats
    sign: Floats

    def by_unit(self, metric: Metric, end: float, until: float | None) -> Floats:
        """Return the credit of each unit that has one, (units,). Arguments as of `tally`."""
        counts = self.shown < end
        if metric.window_s is not None:
            counts &= self.clicked < self.shown + metric.window_s
        if until is not None:
            counts &= (self.exposed <= until) & (self.shown <= until) & (self.clicked <= until)
        units = int(self.unit.max(initial=-1)) + 1
        total = np.bincount(self.unit[counts], self.sign[counts], units)
        number = np.bincount(self.unit[counts], minlength=units)
        return np.asarray(total[number > 0] / number[number > 0])


def read_credits(db: Connection, config: ExperimentConfig) -> tuple[dict[str, Credits], Counter[str]]:
    """Return the credits of an experiment by metric, and its clicks that are on no shown title, by reason.

    The order in which lists and clicks arrived makes no difference.
    """
    first: defaultdict[str, dict[tuple[str, int], tuple[Any, ...]]] = defaultdict(dict)
    unmatched: Counter[str] = Counter()
    for rows in _by_click(db, config):
        click = rows[0]
        contents = {row.content for row in rows}
        index = Shown(click.teams_by_index, click.places, click.ids).index_of(
            click.clicked_index, click.rank, click.object_id
        )
        if len(contents) > 1:
            unmatched["impression"] += 1
        elif index is None:
            unmatched["index"] += 1
        elif click.exposed is not None and click.teams_by_index[index] in (CONTROL, TREATMENT):
            titles = first[click.metric]
            shown = min(row.shown for row in rows)
            sign = 1.0 if click.teams_by_index[index] == TREATMENT else -1.0
            earlier = titles.get((click.id, index))
            clicked = click.time if earlier is None else min(click.time, earlier[3])
            titles[click.id, index] = (click.unit, click.exposed, shown, clicked, sign)
    by_metric = {metric.name: _credits(first[metric.name].values()) for metric in config.metrics}
    return by_metric, unmatched


def unmatched(db: Connection, config: ExperimentConfig, started: float) -> Counter[str]:
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


def tally(
    lists: tuple[int, int, int], clicked: Credits, metric: Metric, end: float, until: float | None = None
) -> ClickSums:
    """Return the credits of an interleaving experiment's units by the clicks of a metric, summed up.

    A list that was shown before the end counts, whatever the traffic was: its unit saw both arms. A click
    counts within the metric's window after its list was shown, also if the experiment has ended since.
    lists: what `count_lists` returned for the same end and `until`.
    end: of the experiment; inf while it runs.
    until: leaves out exposures, lists and clicks of later times, for a past look; None leaves out none.
    """
    shown, differing, viewers = lists
    credit = clicked.by_unit(metric, end, until)
    wins = int(np.count_nonzero(credit > 0))
    losses = int(np.count_nonzero(credit < 0))
    return ClickSums(
        units=len(credit),
        total=float(math.fsum(credit)),
        squares=float(math.fsum(credit * credit)),
        wins=wins,
        losses=losses,
        ties=len(credit) - wins - losses,
        impressions=shown,
        differing=differing,
        viewers=viewers,
    )


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
    """Yield the rows of each click that is on a list of its unit: one for each row of the list."""
    by_id = impressions.c.id == clicks.c.list_id
    by_query_id = and_(impressions.c.query_id == clicks.c.list_id, impressions.c.id != clicks.c.list_id)
    both = _joined(config, by_id).union_all(_joined(config, by_query_id)).subquery()
    query = select(both).order_by(both.c.number).execution_options(yield_per=ROWS_AT_ONCE)
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


def _credits(titles: Iterable[tuple[Any, ...]]) -> Credits:
    """Return the arrays of clicked titles, each a unit's name, three times, and a sign."""
    columns: list[tuple[Any, ...]] = list(zip(*titles, strict=True)) or [()] * 5
    units, exposed, shown, clicked, sign = columns
    _, numbers = np.unique(np.array(units, str), return_inverse=True)
    return Credits(
        numbers.astype(np.int64),
        np.array(exposed, np.float64),
        np.array(shown, np.float64),
        np.array(clicked, np.float64),
        np.array(sign, np.float64),
    )


def count_lists(
    db: Connection, experiment: str, end: float, until: float | None = None
) -> tuple[int, int, int]:
    """Return the lists that count, those in which a title belongs to an arm, and the units that saw one."""
    of_unit = and_(exposures.c.experiment == impressions.c.experiment, exposures.c.unit == impressions.c.unit)
    query = (
        select(
            impressions.c.id,
            impressions.c.unit,
            impressions.c.teams_by_index,
            func.min(impressions.c.time).label("shown"),
        )
        .select_from(impressions.join(exposures, of_unit))
        .where(impressions.c.experiment == experiment)
        .group_by(impressions.c.id, impressions.c.content, impressions.c.unit, impressions.c.teams_by_index)
    )
    if until is not None:
        query = query.where(exposures.c.time <= until, impressions.c.time <= until)
    lists = query.subquery()
    has_team = or_(*(lists.c.teams_by_index.contains(team) for team in (CONTROL, TREATMENT)))
    differ = func.sum(case((has_team, 1), else_=0))
    counts = select(func.count(), differ, func.count(lists.c.unit.distinct())).select_from(lists)
    if end < math.inf:  # a replica may show lists for a second longer
        counts = counts.where(lists.c.shown < end)
    shown, differing, viewers = db.execute(counts).one()
    return int(shown), int(differing or 0), int(viewers)
