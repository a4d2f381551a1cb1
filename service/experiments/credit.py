"""What the users of interleaved lists preferred: sums over units, computed in the database.

A unit's credit is (clicks on the treatment's titles − clicks on control's) / (both), over all its lists. A
click on a title that both arms share says nothing, and a unit without any other click has no credit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import ColumnElement, Subquery, and_, case, cast, func, or_, select
from sqlalchemy.types import Double

from headroom.service.experiments.definition import Metric
from headroom.service.experiments.estimates import VALUE, Moments
from headroom.service.experiments.measure import SECONDS, Comparison
from headroom.service.experiments.state import Withdrawal
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import clicks, exposures, impressions


@dataclass(frozen=True, slots=True)
class Credits:
    """The credits of a metric's units.

    moments: of the credits, each in [−1, 1], as `VALUE`; its units are those that have one.
    impressions: the lists that count. differing: those of them in which a title belongs to one arm alone.
    wins, losses: units that clicked more, or fewer, of the treatment's titles than of control's.
    ties: units that clicked as many.
    """

    moments: Moments
    impressions: int
    differing: int
    wins: int
    losses: int
    ties: int


def preferences(
    store: Store,
    experiment: str,
    metric: Metric,
    now: float,
    withdrawals: Sequence[Withdrawal] = (),
    until: float | None = None,
) -> Credits:
    """Return the credits of an interleaving experiment's units by the clicks of a metric.

    A list counts if its unit was in the experiment when it was shown. A click counts within the metric's
    window after its list, also if the experiment has ended since. `until` leaves out exposures, lists and
    clicks of later times, for a past look.
    now: seconds since the epoch. withdrawals: when units left the experiment. Raises DatabaseUnavailable.
    """
    if until is None:
        store.settle_early_clicks(now)
    lists = _lists(experiment, withdrawals, until)
    with store.read(seconds=SECONDS) as db:
        has_team = or_(*(lists.c.teams_by_index.contains(team) for team in "ct"))
        counts = select(func.count(), func.sum(case((has_team, 1), else_=0))).select_from(lists)
        shown, differing = db.execute(counts).one()
        credit = _credits(lists, experiment, metric, until).c.credit
        totals = (
            func.count(),
            func.sum(credit),
            func.sum(credit * credit),
            func.sum(case((credit > 0, 1), else_=0)),
            func.sum(case((credit < 0, 1), else_=0)),
        )
        units, total, squares, wins, losses = (number or 0 for number in db.execute(select(*totals)).one())
    sums = np.zeros(3)
    sums[VALUE] = total
    products = np.zeros((3, 3))
    products[VALUE, VALUE] = squares
    return Credits(
        moments=Moments.from_sums(float(units), sums, products, np.zeros(3)),
        impressions=shown,
        differing=int(differing or 0),
        wins=int(wins),
        losses=int(losses),
        ties=int(units - wins - losses),
    )


def _lists(experiment: str, withdrawals: Sequence[Withdrawal], until: float | None) -> Subquery:
    """Return a query of the lists that count: id, unit, time, teams_by_index."""
    of_unit = and_(exposures.c.experiment == impressions.c.experiment, exposures.c.unit == impressions.c.unit)
    columns = (impressions.c.id, impressions.c.unit, impressions.c.time, impressions.c.teams_by_index)
    query = (
        select(*columns)
        .select_from(impressions.join(exposures, of_unit))
        .where(
            impressions.c.experiment == experiment,
            Comparison((), tuple(withdrawals)).had_arm(exposures, impressions.c.time),
        )
    )
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
    credit = cast(difference, Double) / func.count()
    joined = lists.join(clicks, and_(*counts))
    return select(credit.label("credit")).select_from(joined).group_by(lists.c.unit).subquery()
