"""Sums over units, computed in the database, so that an analysis reads a few rows for any number of units.

An arm that was rolled back is compared with control's units of the same time, so that changes in the world
after it do not look like the arm's effect. An outcome of a unit that has lost its arm (a stop, a ship, a
rollback, less traffic) comes from the default, and would hide the arm's effect.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Subquery,
    and_,
    case,
    func,
    literal,
    not_,
    select,
    true,
)

from service.experiments.definition import ExperimentConfig, Metric
from service.experiments.estimates import Moments
from service.experiments.state import Loss
from service.experiments.store import Store
from service.experiments.tables import exposures, outcomes

SECONDS = 60
"""Limit of one statement of an analysis (PostgreSQL)."""

WHOLE_SECOND = 1.0
"""Many callers round times down to whole seconds, so an outcome may seem up to this much older."""

SKEW_SECONDS = 60.0
"""If an outcome is older than its unit's exposure by less than this, the sender's clock is probably slow."""

Condition = ColumnElement[bool]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Control and the arms that ran as long as each other: until `end`, with `losses` of units until then."""

    arms: tuple[str, ...]
    losses: tuple[Loss, ...] = ()
    end: float = math.inf

    def had_arm(self, units: FromClause, time: ColumnElement[Any]) -> Condition:
        """Return the condition that a unit still has its arm at a time after its exposure."""
        kept = (
            not_(and_(units.c.time < loss.time, time >= loss.time, _is_lost(units, loss)))
            for loss in self.losses
        )
        return and_(true(), *kept)

    def units(self, experiment: str) -> Subquery:
        """Return the exposures of the arms while all of them ran."""
        theirs = and_(exposures.c.experiment == experiment, exposures.c.arm.in_(self.arms))
        during = exposures.c.time < self.end if self.end < math.inf else true()
        return select(exposures).where(theirs, during).subquery()


def comparisons(config: ExperimentConfig, losses: Sequence[Loss]) -> dict[str, Comparison]:
    """Return each arm's comparison with control. Arms that ran as long as each other share one."""
    ends = {
        arm: next((loss.time for loss in losses if arm not in loss.limits), math.inf)
        for arm in config.treatments
    }
    by_end = {
        end: Comparison(
            (config.control, *(arm for arm in ends if ends[arm] == end)),
            tuple(loss for loss in losses if loss.time <= end),
            end,
        )
        for end in ends.values()
    }
    return {arm: by_end[end] for arm, end in ends.items()}


@dataclass(frozen=True, slots=True)
class Measured:
    """The moments of a metric by arm.

    early: outcomes by arm from the minute before their unit's exposure, which do not count.
    """

    moments: Mapping[str, Moments]
    early: Mapping[str, int] = field(default_factory=dict)


def measure(
    store: Store, experiment: str, metric: Metric, now: float, during: Comparison, until: float | None = None
) -> Measured:
    """Return the moments of the units' values, denominators and covariates by arm.

    A metric's outcomes count after the unit's exposure, and a covariate's before it; an outcome of the last
    second before it counts as after. A unit without outcomes counts as 0.
    now: seconds since the epoch; units whose window is not over by then are left out.
    until: leaves out exposures and outcomes of later times, and does not count early ones; None leaves out
        none.
    """
    with store.read(seconds=SECONDS) as db:
        units = _units(experiment, metric, now, during, until)
        columns = [units.c.value, units.c.denominator, units.c.covariate]
        moments = moments_by_arm(db, units, columns)
        if until is not None:
            return Measured(moments)
        early = select(units.c.arm, func.sum(units.c.early)).group_by(units.c.arm)
        return Measured(moments, {arm: int(number) for arm, number in db.execute(early)})


def moments_by_arm(
    db: Connection, rows: FromClause, columns: Sequence[ColumnElement[Any]]
) -> dict[str, Moments]:
    """Return the moments of three columns by arm.

    The second pass sums around the mean, because sums of squares of large values would lose digits.
    """
    means = db.execute(select(*(func.avg(column) for column in columns)).select_from(rows)).one()
    centre = [float(mean or 0.0) for mean in means]
    shifted = [column - literal(middle) for column, middle in zip(columns, centre, strict=True)]
    pairs = [(i, j) for i in range(3) for j in range(i, 3)]
    query = select(
        rows.c.arm,
        func.count(),
        *(func.sum(column) for column in shifted),
        *(func.sum(shifted[i] * shifted[j]) for i, j in pairs),
    ).group_by(rows.c.arm)
    moments = {}
    for arm, units, *sums in db.execute(query):
        products = np.zeros((3, 3))
        for (i, j), total in zip(pairs, sums[3:], strict=True):
            products[i, j] = products[j, i] = total
        moments[arm] = Moments.from_sums(float(units), np.array(sums[:3], np.float64), products, centre)
    return moments


def _units(experiment: str, metric: Metric, now: float, during: Comparison, until: float | None) -> Subquery:
    """Return a query with one row per unit: arm, value, denominator, covariate, and its early outcomes."""
    window_s = None if metric.window_hours is None else metric.window_hours * 3600
    exposed = during.units(experiment)
    since = exposed.c.time - WHOLE_SECOND
    counts = outcomes.c.time > since
    if window_s is None:
        counts = and_(counts, during.had_arm(exposed, outcomes.c.time))
    else:  # a unit whose treatment ended within its window is left out below
        counts = and_(counts, outcomes.c.time < exposed.c.time + window_s)
    if until is not None:
        counts = and_(counts, outcomes.c.time <= until)

    def total(name: str | None, when: Condition) -> ColumnElement[Any]:
        if name is None:
            return literal(0.0)
        return func.sum(case((and_(outcomes.c.metric == name, when), outcomes.c.value), else_=0.0))

    value = total(metric.name, counts)
    if metric.kind == "proportion":
        value = case((value > 0, 1.0), else_=0.0)
    is_early = and_(
        outcomes.c.metric.in_([metric.name, metric.denominator or metric.name]),
        outcomes.c.time <= since,
        outcomes.c.time > since - SKEW_SECONDS,
    )
    theirs = and_(
        outcomes.c.experiment == exposed.c.experiment,
        outcomes.c.unit == exposed.c.unit,
        outcomes.c.metric.in_(sorted(metric.sources)),
    )
    query = (
        select(
            exposed.c.arm,
            value.label("value"),
            total(metric.denominator, counts).label("denominator"),
            total(metric.covariate, outcomes.c.time <= since).label("covariate"),
            func.sum(case((is_early, 1), else_=0)).label("early"),
        )
        .select_from(exposed.outerjoin(outcomes, theirs))
        .group_by(exposed.c.unit, exposed.c.arm)
    )
    if until is not None:
        query = query.where(exposed.c.time <= until)
    if window_s is not None:
        query = query.where(
            exposed.c.time <= now - window_s, during.had_arm(exposed, exposed.c.time + window_s)
        )
    return query.subquery()


def _is_lost(units: FromClause, loss: Loss) -> Condition:
    return units.c.bucket >= case(dict(loss.limits), value=units.c.arm, else_=0) if loss.limits else true()
