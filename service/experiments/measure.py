"""Sums over units, computed in the database, so that an analysis reads a few rows for any number of units.

An arm that was rolled back is compared with control's units of the same time, so that changes in the world
after it do not look like the arm's effect. An outcome of a unit that has lost its arm (a stop, a ship, a
rollback, less traffic, fewer slots) comes from the default, and would hide the arm's effect. A unit that gets
its arm back counts again from then on; its outcomes between do not count, whichever its arm is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Subquery,
    and_,
    case,
    false,
    func,
    literal,
    not_,
    or_,
    select,
)

from headroom.service.experiments.buckets import NO_BUCKET
from headroom.service.experiments.definition import ALL_SLOTS, ExperimentConfig, Metric
from headroom.service.experiments.estimates import NOBODY, Moments
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


@dataclass(frozen=True)
class Comparison:
    """Control and an arm, as long as the arm ran.

    end: when the arm ended; inf while it runs. periods: which units were exposed when, until then.
    """

    arms: tuple[str, str]
    periods: tuple[Period, ...]
    end: float = math.inf

    def had_arm(self, units: FromClause, time: Expression) -> Condition:
        """Return the condition that a unit has its arm at a time.

        units: rows with the columns `bucket`, `slot` and `arm` of exposures.
        """
        exposing = [
            and_(time >= period.since, time < period.until, _exposes(units, period))
            for period in self.periods
        ]
        return or_(false(), *exposing)

    def had_arm_throughout(self, units: FromClause, seconds: float) -> Condition:
        """Return the condition that a unit had its arm from its exposure on for so many seconds."""
        window_end = units.c.time + seconds
        others = [
            and_(window_end >= period.since, units.c.time < period.until, not_(_exposes(units, period)))
            for period in self.periods
        ]
        return and_(window_end < self.end, not_(or_(false(), *others)))

    def units(self, experiment: str, until: float) -> Subquery:
        """Return the exposures of the arms while both ran, without units that came to two arms.

        until: leaves out exposures of later times.
        """
        query = select(exposures).where(
            exposures.c.experiment == experiment,
            exposures.c.arm.in_(self.arms),
            exposures.c.time <= until,
            exposures.c.time < self.end,
            ~has_other_arm(until),
        )
        return query.subquery()


def comparison(experiment: Experiment, arm: str, until: float = math.inf) -> Comparison:
    """Return an arm's comparison with control. until: leaves out what the log said later, for a past look."""
    known = [period for period in experiment.periods if period.since <= until]
    if known:
        known[0] = replace(known[0], since=-math.inf)  # callers round times down, also below the start
    end = next((period.since for period in known if arm not in period.limits), math.inf)
    periods = [period for period in known if period.since < end]
    return Comparison((experiment.config.control, arm), tuple(periods), end)


def _exposes(units: FromClause, period: Period) -> Condition:
    """Return the condition that a period exposes a unit. The caller's own choice has no slot."""
    limit = case(dict(period.limits), value=units.c.arm, else_=NO_BUCKET)
    is_exposed: Condition = units.c.bucket < limit
    if period.slots == ALL_SLOTS:
        return is_exposed
    first, end = period.slots
    is_within = and_(units.c.slot >= first, units.c.slot < end)
    return and_(is_exposed, or_(units.c.bucket == NO_BUCKET, is_within))


def measure(
    store: Store, experiment: str, metric: Metric, now: float, during: Comparison, until: float = math.inf
) -> dict[str, Moments]:
    """Return the moments of the units' values, denominators and covariates by arm.

    A metric's outcomes count after the unit's exposure, and a covariate's before it; an outcome of the last
    second before it counts as after. A unit without outcomes counts as 0.
    now: seconds since the epoch; units whose window is not over by then are left out.
    until: leaves out exposures and outcomes of later times.
    """
    units = _units(experiment, metric, now, during, until)
    columns = [units.c.value, units.c.denominator, units.c.covariate]
    with store.read_all() as db:
        by_arm = moments_by_arm(db, units, columns)
    return {arm: by_arm.get(arm, NOBODY) for arm in during.arms}


def count_early(store: Store, config: ExperimentConfig) -> dict[str, int]:
    """Return by arm the outcomes from the minute before their unit's exposure, which do not count."""
    names = {name for metric in config.metrics for name in (metric.name, metric.denominator)}
    since_exposure = outcomes.c.time - exposures.c.time + WHOLE_SECOND
    query = (
        select(exposures.c.arm, func.count().label("early"))
        .join(
            outcomes,
            and_(outcomes.c.experiment == exposures.c.experiment, outcomes.c.unit == exposures.c.unit),
        )
        .where(
            exposures.c.experiment == config.name,
            outcomes.c.metric.in_(sorted(names - {None})),
            since_exposure <= 0,
            since_exposure > -SKEW_SECONDS,
            ~has_other_arm(),
        )
        .group_by(exposures.c.arm)
    )
    with store.read_all() as db:
        early = {row.arm: int(row.early) for row in db.execute(query)}
    return {arm: early.get(arm, 0) for arm in config.spans}


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


def _units(experiment: str, metric: Metric, now: float, during: Comparison, until: float) -> Subquery:
    """Return a query with one row per unit: arm, value, denominator, covariate."""
    units = during.units(experiment, until)
    exposed_at = units.c.time - WHOLE_SECOND
    if metric.window_s is None:
        counts = during.had_arm(units, outcomes.c.time)
    else:  # a unit that lost its arm within its window is left out as a whole
        counts = outcomes.c.time < units.c.time + metric.window_s
    is_after = and_(outcomes.c.time > exposed_at, outcomes.c.time <= until, counts)
    value = _total(metric.name, is_after)
    if metric.kind == "proportion":
        value = case((value > 0, 1.0), else_=0.0)
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
            _total(metric.covariate, outcomes.c.time <= exposed_at).label("covariate"),
        )
        .select_from(units.outerjoin(outcomes, of_unit))
        .group_by(units.c.unit, units.c.arm)
    )
    if metric.window_s is not None:  # the window is over, and the unit had its arm until then
        has_arm = during.had_arm_throughout(units, metric.window_s)
        query = query.where(units.c.time <= now - metric.window_s, has_arm)
    return query.subquery()


def _total(name: str | None, when: Condition) -> Expression:
    """Return the sum of the outcomes of a metric under a condition; 0 without a metric."""
    if name is None:
        return literal(0.0)
    return func.sum(case((and_(outcomes.c.metric == name, when), outcomes.c.value), else_=0.0))
