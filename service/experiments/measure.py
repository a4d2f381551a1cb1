"""Sums over units, computed in the database, so that an analysis reads a few rows for any number of units.

An arm that was rolled back is compared with control's units of the same time, so that changes in the world
after it do not look like the arm's effect. An outcome of a unit that has lost its arm (a stop, a ship, a
rollback, less traffic, fewer slots) comes from the default, and would hide the arm's effect. A unit that gets
its arm back counts again from then on; its outcomes between do not count, whichever its arm is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    or_,
    select,
    true,
)

from headroom.service.experiments.buckets import NO_BUCKET, ByArm
from headroom.service.experiments.definition import ALL_SLOTS, Metric
from headroom.service.experiments.estimates import Moments
from headroom.service.experiments.facts import has_other_arm
from headroom.service.experiments.state import Experiment, Period
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import exposures, outcomes

Expression = ColumnElement[Any]
Condition = ColumnElement[bool]

WHOLE_SECOND = 1.0
"""Many callers round times down to whole seconds, so an outcome may seem up to this much older."""

SKEW_SECONDS = 60.0
"""If an outcome is older than its unit's exposure by less than this, the sender's clock is probably slow."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Control and the arms with the same end time.

    end: when the arms ended; inf while they run. periods: which units were exposed when, until then.
    """

    arms: tuple[str, ...]
    periods: tuple[Period, ...] = ()
    end: float = math.inf

    def had_arm(self, units: FromClause, time: Expression) -> Condition:
        """Return the condition that a unit has its arm at a time.

        units: rows with the columns `bucket`, `slot` and `arm` of exposures.
        """
        if not self.periods:
            return true()
        return or_(*(and_(_within(time, period), _exposes(units, period)) for period in self.periods))

    def had_arm_throughout(self, units: FromClause, seconds: float) -> Condition:
        """Return the condition that a unit had its arm from its exposure on for so many seconds."""
        condition: Condition = units.c.time + seconds < self.end if self.end < math.inf else true()
        for period in self.periods:
            touches: Condition = (
                units.c.time + seconds >= period.since if period.since > -math.inf else true()
            )
            if period.until < math.inf:
                touches = and_(touches, units.c.time < period.until)
            condition = and_(condition, not_(and_(touches, not_(_exposes(units, period)))))
        return condition

    def units(self, experiment: str, until: float | None = None) -> Subquery:
        """Return the exposures of the arms while all of them ran, without units that came to two arms.

        until: leaves out exposures of later times.
        """
        of_arms = and_(exposures.c.experiment == experiment, exposures.c.arm.in_(self.arms))
        query = select(exposures).where(of_arms, ~has_other_arm(until))
        if until is not None:
            query = query.where(exposures.c.time <= until)
        if self.end < math.inf:
            query = query.where(exposures.c.time < self.end)
        return query.subquery()


def comparisons(experiment: Experiment, until: float = math.inf) -> dict[str, Comparison]:
    """Return each arm's comparison with control. Arms with the same end time share one.

    until: leaves out what the log said later, for a past look.
    """
    config = experiment.config
    known = [period for period in experiment.periods if period.since <= until]
    if known:
        known[0] = replace(known[0], since=-math.inf)  # callers round times down, also below the start
    ends: dict[str, float] = {}
    for arm in config.treatments:
        ends[arm] = next((period.since for period in known if arm not in period.limits), math.inf)
    by_end: dict[float, Comparison] = {}
    for end in set(ends.values()):
        arms = [arm for arm in config.treatments if ends[arm] == end]
        before_end = [period for period in known if period.since < end]
        if before_end and end == math.inf:
            before_end[-1] = replace(before_end[-1], until=math.inf)
        by_end[end] = Comparison((config.control, *arms), tuple(before_end), end)
    return {arm: by_end[end] for arm, end in ends.items()}


def _within(time: Expression, period: Period) -> Condition:
    conditions = []
    if period.since > -math.inf:
        conditions.append(time >= period.since)
    if period.until < math.inf:
        conditions.append(time < period.until)
    return and_(true(), *conditions)


def _exposes(units: FromClause, period: Period) -> Condition:
    """Return the condition that a period exposes a unit. The caller's own choice has no slot."""
    limit = case(dict(period.limits), value=units.c.arm, else_=NO_BUCKET)
    is_exposed: Condition = units.c.bucket < limit
    if period.slots == ALL_SLOTS:
        return is_exposed
    first, end = period.slots
    is_within = and_(units.c.slot >= first, units.c.slot < end)
    return and_(is_exposed, or_(units.c.bucket == NO_BUCKET, is_within))


@dataclass(frozen=True, slots=True)
class Measured:
    """The moments of a metric by arm.

    early: outcomes by arm from the minute before their unit's exposure, which do not count.
    """

    moments: Mapping[str, Moments]
    early: ByArm = field(default_factory=dict)


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
    with store.read_all() as db:
        units = _units(experiment, metric, now, during, until)
        columns = [units.c.value, units.c.denominator, units.c.covariate]
        moments = moments_by_arm(db, units, columns)
        if until is not None:
            return Measured(moments)
        early = select(units.c.arm, func.sum(units.c.early)).group_by(units.c.arm)
        return Measured(moments, {arm: int(number) for arm, number in db.execute(early)})


def moments_by_arm(db: Connection, rows: FromClause, columns: Sequence[Expression]) -> dict[str, Moments]:
    """Return the moments of three columns by arm.

    The second pass sums around the mean, because sums of squares of large values would lose digits.
    """
    means = db.execute(select(*map(func.avg, columns)).select_from(rows)).one()
    centre = [float(mean or 0.0) for mean in means]
    shifted = [column - literal(middle) for column, middle in zip(columns, centre, strict=True)]
    products = [func.sum(left * right) for left in shifted for right in shifted]
    query = select(rows.c.arm, func.count(), *map(func.sum, shifted), *products).group_by(rows.c.arm)
    moments = {}
    for arm, units, *numbers in db.execute(query):
        totals = np.array(numbers, np.float64)
        moments[arm] = Moments.from_sums(float(units), totals[:3], totals[3:].reshape(3, 3), centre)
    return moments


def _units(experiment: str, metric: Metric, now: float, during: Comparison, until: float | None) -> Subquery:
    """Return a query with one row per unit: arm, value, denominator, covariate, and its early outcomes."""
    units = during.units(experiment, until)
    exposed_at = units.c.time - WHOLE_SECOND
    is_after = _after_exposure(metric, during, units, until)
    is_before = outcomes.c.time <= exposed_at
    value = _total(metric.name, is_after)
    if metric.kind == "proportion":
        value = case((value > 0, 1.0), else_=0.0)
    is_early = and_(
        outcomes.c.metric.in_([metric.name, metric.denominator or metric.name]),
        is_before,
        outcomes.c.time > exposed_at - SKEW_SECONDS,
    )
    of_unit = and_(
        outcomes.c.experiment == units.c.experiment,
        outcomes.c.unit == units.c.unit,
        outcomes.c.metric.in_(sorted(metric.sources)),
    )
    query = (
        select(
            units.c.arm,
            value.label("value"),
            _total(metric.denominator, is_after).label("denominator"),
            _total(metric.covariate, is_before).label("covariate"),
            func.sum(case((is_early, 1), else_=0)).label("early"),
        )
        .select_from(units.outerjoin(outcomes, of_unit))
        .group_by(units.c.unit, units.c.arm)
    )
    window_s = metric.window_s
    if window_s is not None:  # the window is over, and the unit had its arm until then
        has_arm = during.had_arm_throughout(units, window_s)
        query = query.where(units.c.time <= now - window_s, has_arm)
    return query.subquery()


def _after_exposure(metric: Metric, during: Comparison, units: Subquery, until: float | None) -> Condition:
    """Return the condition that an outcome counts: it came after its unit's exposure, and in time."""
    if metric.window_s is None:
        in_time = during.had_arm(units, outcomes.c.time)
    else:  # a unit that lost its arm within its window is left out as a whole
        in_time = outcomes.c.time < units.c.time + metric.window_s
    if until is not None:
        in_time = and_(in_time, outcomes.c.time <= until)
    return and_(outcomes.c.time > units.c.time - WHOLE_SECOND, in_time)


def _total(name: str | None, when: Condition) -> Expression:
    """Return the sum of the outcomes of a metric under a condition; 0 without a metric."""
    if name is None:
        return literal(0.0)
    return func.sum(case((and_(outcomes.c.metric == name, when), outcomes.c.value), else_=0.0))
