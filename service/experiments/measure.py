"""Sums over units, computed in the database, so that an analysis reads a few rows for any number of units.

Only the times in which the compared arms ran count. An arm that was rolled back is compared with control's
units of the same time, so that changes in the world before or after do not look like the arm's effect. An
outcome from after the end (a stop, a ship, a rollback, less traffic) comes from the default in every arm, and
would hide the arm's effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
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

from service.experiments.definition import Metric
from service.experiments.estimates import Moments
from service.experiments.state import Run
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
    """Arms that ran at the same times, control among them, and those times: runs without a loss of units."""

    arms: tuple[str, ...]
    runs: tuple[Run, ...]

    @classmethod
    def of(cls, arms: Iterable[str], runs: Sequence[Run]) -> Comparison:
        """Compare arms, control among them, while all of them are exposed. runs: the experiment's."""
        arms = tuple(arms)
        joined: list[Run] = []
        highest = dict.fromkeys(arms, 0)
        for index, run in enumerate(runs):
            if not run.limits.keys() >= set(arms):
                continue
            limits = {arm: run.limits[arm] for arm in arms}
            # The buckets from these limits up to `highest` were exposed before, and are not now.
            is_lower = any(limits[arm] < highest[arm] for arm in arms)
            if joined and joined[-1].end == run.start and joined[-1].limits == highest and not is_lower:
                joined[-1] = replace(joined[-1], end=run.end, limits=limits)
            else:
                start = run.start if index else -math.inf  # nobody was exposed before
                joined.append(Run(start, run.end, run.traffic, limits))
            highest = {arm: max(highest[arm], limits[arm]) for arm in arms}
        return cls(arms, tuple(joined))

    def had_arm(self, units: FromClause, time: ColumnElement[Any]) -> Condition:
        """Return the condition that a unit has its arm at a time after its exposure."""
        return or_(false(), *(and_(_inside(time, run), _below(units, run.limits)) for run in self.runs))

    def lasted(self, units: FromClause, seconds: float) -> Condition:
        """Return the condition that a unit kept its arm for so long after its exposure, without a break."""
        breaks = []
        for run, later in pairwise([*self.runs, None]):
            assert run is not None
            if run.end < math.inf:
                goes_on = later is not None and later.start == run.end
                keeps = _below(units, later.limits) if later is not None and goes_on else false()
                breaks.append(and_(units.c.time < run.end, units.c.time + seconds > run.end, not_(keeps)))
        return not_(or_(false(), *breaks))

    def units(self, experiment: str) -> Subquery:
        """Return the exposures of the arms that were first while all of them ran."""
        during = or_(false(), *(_inside(exposures.c.time, run) for run in self.runs))
        theirs = and_(exposures.c.experiment == experiment, exposures.c.arm.in_(self.arms))
        return select(exposures).where(theirs, during).subquery()


def comparisons(control: str, others: Sequence[str], runs: Sequence[Run]) -> dict[str, Comparison]:
    """Return each arm's comparison with control. Arms that ran at the same times share one."""
    together: dict[tuple[int, ...], list[str]] = {}
    for arm in others:
        indices = tuple(index for index, run in enumerate(runs) if run.limits.keys() >= {control, arm})
        together.setdefault(indices, []).append(arm)
    by_arm: dict[str, Comparison] = {}
    for arms in together.values():
        by_arm.update(dict.fromkeys(arms, Comparison.of([control, *arms], runs)))
    return by_arm


@dataclass(frozen=True, slots=True)
class Measured:
    """The moments of a metric by arm.

    early: outcomes by arm that do not count because they came before their unit's exposure.
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
    """Return a query with one row per unit: arm, value, denominator, covariate, and its early outcomes.

    If the metric is its own covariate, its early outcomes are its past, but for those of the last minute.
    """
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
    is_early: Condition = outcomes.c.metric.in_([metric.name, metric.denominator or metric.name])
    if metric.covariate is not None:
        is_early = and_(
            is_early,
            or_(outcomes.c.metric != metric.covariate, outcomes.c.time > since - SKEW_SECONDS),
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
            func.sum(case((and_(is_early, outcomes.c.time <= since), 1), else_=0)).label("early"),
        )
        .select_from(exposed.outerjoin(outcomes, theirs))
        .group_by(exposed.c.unit, exposed.c.arm)
    )
    if until is not None:
        query = query.where(exposed.c.time <= until)
    if window_s is not None:
        query = query.where(exposed.c.time <= now - window_s, during.lasted(exposed, window_s))
    return query.subquery()


def _inside(time: ColumnElement[Any], run: Run) -> Condition:
    after = [] if run.start == -math.inf else [time >= run.start]
    return and_(*after, time < run.end) if run.end < math.inf else and_(literal(True), *after)


def _below(units: FromClause, limits: Mapping[str, int]) -> Condition:
    return units.c.bucket < case(dict(limits), value=units.c.arm, else_=0)
