"""Measures what the users of interleaved lists preferred: sums over units, computed in the database.

A unit's credit is (clicks on the treatment's titles − clicks on control's) / (both), over all its lists. A
click on a title that both arms share says nothing, and a unit without any other click has no credit.
"""

import math

from sqlalchemy import ColumnElement, Connection, Subquery, and_, case, func, or_, select

from headroom.service.experiments.definition import Metric
from headroom.service.experiments.preference import Tally
from headroom.service.experiments.tables import clicks, exposures, impressions


def tally(db: Connection, experiment: str, metric: Metric, end: float, until: float | None) -> Tally:
    """Return the credits of an interleaving experiment's units by the clicks of a metric, summed up.

    A list that was shown before the end counts, whatever the traffic was: its unit saw both arms. A click
    counts within the metric's window after its list was shown, also if the experiment has ended since.
    until: leaves out exposures, lists and clicks of later times, for a past look; None leaves out none.
    """
    lists = _lists(experiment, end, until)
    has_team = or_(*(lists.c.teams_by_index.contains(team) for team in "ct"))
    differ = func.sum(case((has_team, 1), else_=0))
    counts = select(func.count(), differ, func.count(lists.c.unit.distinct())).select_from(lists)
    shown, differing, viewers = db.execute(counts).one()
    credit = _credits(lists, experiment, metric, until).c.credit
    totals = (
        func.count(),
        func.sum(credit),
        func.sum(credit * credit),
        func.sum(case((credit > 0, 1), else_=0)),
        func.sum(case((credit < 0, 1), else_=0)),
    )
    units, total, squares, wins, losses = (number or 0 for number in db.execute(select(*totals)).one())
    return Tally(
        units=int(units),
        total=float(total),
        squares=float(squares),
        wins=int(wins),
        losses=int(losses),
        ties=int(units - wins - losses),
        impressions=int(shown),
        differing=int(differing or 0),
        viewers=int(viewers),
    )


def _lists(experiment: str, end: float, until: float | None) -> Subquery:
    """Return a query of the lists that count: id, unit, time, teams_by_index."""
    of_unit = and_(exposures.c.experiment == impressions.c.experiment, exposures.c.unit == impressions.c.unit)
    columns = (impressions.c.id, impressions.c.unit, impressions.c.time, impressions.c.teams_by_index)
    query = (
        select(*columns)
        .select_from(impressions.join(exposures, of_unit))
        .where(impressions.c.experiment == experiment)
    )
    if end < math.inf:  # a replica may show lists for a second longer
        query = query.where(impressions.c.time < end)
    if until is not None:
        query = query.where(exposures.c.time <= until, impressions.c.time <= until)
    return query.subquery()


def _credits(lists: Subquery, experiment: str, metric: Metric, until: float | None) -> Subquery:
    """Return a query of the credit of each unit that has one."""
    team = func.substr(lists.c.teams_by_index, clicks.c.index + 1, 1)
    counts = [
        clicks.c.experiment == experiment,
        clicks.c.impression == lists.c.id,
        clicks.c.metric == metric.name,
        team.in_(("c", "t")),
    ]
    if metric.window_s is not None:
        counts.append(clicks.c.time < lists.c.time + metric.window_s)
    if until is not None:
        counts.append(clicks.c.time <= until)
    difference: ColumnElement[float] = func.sum(case((team == "t", 1.0), else_=-1.0))
    credit = difference / func.count()
    joined = lists.join(clicks, and_(*counts))
    return select(credit.label("credit")).select_from(joined).group_by(lists.c.unit).subquery()
