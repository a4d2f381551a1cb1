"""Sums over units, computed in the database, so that an analysis reads a few rows for any number of units.

An arm that was rolled back is compared with control's units of the same time, so that changes in the world
after it do not look like the arm's effect. An outcome of a unit that has lost its arm (a stop, a ship, a
rollback, less traffic, fewer slots) comes from the default, and would hide the arm's effect. A unit that gets
its arm back counts again from then on; its outcomes between do not count, whichever its arm is.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sqlalchemy import (
    CTE,
    ColumnElement,
    Double,
    Select,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)

from headroom.service.experiments.buckets import NO_BUCKET
from headroom.service.experiments.definition import ALL_SLOTS, ExperimentConfig, Metric
from headroom.service.experiments.estimates import Moments
from headroom.service.experiments.state import Experiment, Period
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import exposures, outcomes

Expression = ColumnElement[Any]
Condition = ColumnElement[bool]

WHOLE_SECOND = 1.0
"""Many callers round times down to whole seconds, so an outcome may seem up to this much older."""

SKEW_SECONDS = 60.0
"""If an outcome is older than its unit's exposure by less than this, the sender's clock is probably slow."""

NOW = bindparam("now", type_=Double)
UNTIL = bindparam("until", type_=Double)
"""The times of a look, in Unix seconds."""

_other = exposures.alias()
_IN_ONE_ARM = ~exists().where(
    _other.c.experiment == exposures.c.experiment,
    _other.c.unit == exposures.c.unit,
    _other.c.arm != exposures.c.arm,
    _other.c.time <= UNTIL,
)
"""The condition that the unit of an exposure came to no other arm by then."""


@dataclass(frozen=True)
class Comparison:
    """Control and an arm, as long as the arm ran.

    end: when the arm ended; inf while it runs. periods: which units were exposed when, until then.
    """

    arms: tuple[str, str]
    periods: tuple[Period, ...]
    end: float = math.inf

    def had_arm(self, time: Expression) -> Condition:
        """Return the condition that a unit has its arm at a time."""
        exposing = [
            and_(time >= period.since, time < period.until, _exposes(period)) for period in self.periods
        ]
        return or_(false(), *exposing)

    def had_arm_throughout(self, seconds: float) -> Condition:
        """Return the condition that a unit had its arm from its exposure on for so many seconds."""
        window_end = exposures.c.time + seconds
        others = [
            and_(window_end >= period.since, exposures.c.time < period.until, not_(_exposes(period)))
            for period in self.periods
        ]
        return and_(window_end < self.end, not_(or_(false(), *others)))


def comparison(experiment: Experiment, arm: str) -> Comparison:
    """Return an arm's comparison with control."""
    first, *later = experiment.periods
    known = [replace(first, since=-math.inf), *later]  # callers round times down, also below the start
    end = next((period.since for period in known if arm not in period.limits), math.inf)
    periods = [period for period in known if period.since < end]
    return Comparison((experiment.config.control, arm), tuple(periods), end)


def _exposes(period: Period) -> Condition:
    """Return the condition that a period exposes a unit. The caller's own choice has no slot."""
    limit = case(dict(period.limits), value=exposures.c.arm, else_=NO_BUCKET)
    is_exposed: Condition = exposures.c.bucket < limit
    if period.slots == ALL_SLOTS:
        return is_exposed
    first, end = period.slots
    is_within = and_(exposures.c.slot >= first, exposures.c.slot < end)
    return and_(is_exposed, or_(exposures.c.bucket == NO_BUCKET, is_within))


def moments_query(experiment: str, metric: Metric, during: Comparison) -> Select[Any]:
    """Return the statement that `measure` runs, which serves any number of looks.

    Values are summed around their mean, because sums of squares of large values would lose digits.
    """
    units = _units(experiment, metric, during)
    columns = [units.c.value, units.c.denominator, units.c.covariate]
    means = select(*(func.coalesce(func.avg(column), 0.0) for column in columns)).cte("means")
    shifted = [column - mean for column, mean in zip(columns, means.c, strict=True)]
    products = [func.sum(left * right) for left in shifted for right in shifted]
    return (
        select(units.c.arm, func.count(), *means.c, *map(func.sum, shifted), *products)
        .select_from(units.join(means, true()))
        .group_by(units.c.arm, *means.c)
    )


def measure(store: Store, query: Select[Any], now: float, until: float = math.inf) -> dict[str, Moments]:
    """Return the moments of the units' values, denominators and covariates, by the arms that have units.

    A metric's outcomes count after the unit's exposure, and a covariate's before it; an outcome of the last
    second before it counts as after. A unit without outcomes counts as 0.
    query: of `moments_query`. now: seconds since the epoch; units whose window is not over by then are left
    out. until: leaves out exposures and outcomes of later times.
    """
    moments = {}
    with store.read_all() as db:
        for arm, units, *numbers in db.execute(query, {"now": now, "until": until}):
            centre, sums, products = np.split(np.array(numbers, np.float64), [3, 6])
            moments[arm] = Moments.from_sums(float(units), sums, products.reshape(3, 3), centre)
    return moments


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
            _IN_ONE_ARM,
        )
        .group_by(exposures.c.arm)
    )
    with store.read_all() as db:
        early = {row.arm: int(row.early) for row in db.execute(query, {"until": math.inf})}
    return {arm: early.get(arm, 0) for arm in config.spans}


def _units(experiment: str, metric: Metric, during: Comparison) -> CTE:
    """Return a query with one row per unit of the arms while both ran: arm, value, denominator, covariate.

    Units that came to two arms are left out.
    """
    exposed_at = exposures.c.time - WHOLE_SECOND
    if metric.window_s is None:
        counts = during.had_arm(outcomes.c.time)
    else:  # a unit that lost its arm within its window is left out as a whole
        counts = outcomes.c.time < exposures.c.time + metric.window_s
    is_after = and_(outcomes.c.time > exposed_at, outcomes.c.time <= UNTIL, counts)
    value = _total(metric.name, is_after)
    if metric.kind == "proportion":
        value = case((value > 0, 1.0), else_=0.0)
    of_unit = and_(
        outcomes.c.experiment == exposures.c.experiment,
        outcomes.c.unit == exposures.c.unit,
        outcomes.c.metric.in_(sorted(metric.sources)),
    )
    query = (
        select(
            exposures.c.arm,
            value.label("value"),
            _total(metric.denominator, is_after).label("denominator"),
            _total(metric.covariate, outcomes.c.time <= exposed_at).label("covariate"),
        )
        .select_from(exposures.outerjoin(outcomes, of_unit))
        .where(
            exposures.c.experiment == experiment,
            exposures.c.arm.in_(during.arms),
            exposures.c.time <= UNTIL,
            exposures.c.time < during.end,
            _IN_ONE_ARM,
        )
        .group_by(exposures.c.unit, exposures.c.arm)
    )
    if metric.window_s is not None:  # the window is over, and the unit had its arm until then
        has_arm = during.had_arm_throughout(metric.window_s)
        query = query.where(exposures.c.time <= NOW - metric.window_s, has_arm)
    return query.cte("units")


def _total(name: str | None, when: Condition) -> Expression:
    """Return the sum of the outcomes of a metric under a condition; 0 without a metric."""
    if name is None:
        return literal(0.0)
    return func.sum(case((and_(outcomes.c.metric == name, when), outcomes.c.value), else_=0.0))
