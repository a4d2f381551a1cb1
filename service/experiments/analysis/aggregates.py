"""Sums over units, computed in the database, so that an analysis reads a few rows for any number of units."""

from __future__ import annotations

from collections.abc import Mapping
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
)

from service.experiments.analysis.comparison import Comparison
from service.experiments.analysis.moments import VALUE, Moments
from service.experiments.definition.metric import Metric
from service.experiments.storage.schema import exposures, outcomes, shadow_histograms, shadow_results
from service.experiments.storage.store import Store

SECONDS = 60
"""Limit of one statement of an analysis (PostgreSQL)."""

WHOLE_SECOND = 1.0
"""Many callers send times in whole seconds, so an outcome may seem to be so much older than it is."""

SKEW_SECONDS = 60.0
"""An outcome that is at most so much older than its unit's exposure is rather of a clock that is behind."""

SHADOW_MEASURES = (
    "mean_delta",
    "mean_abs_delta",
    "rank_correlation",
    "top10_overlap",
    "ndcg_delta",
    "seconds_delta",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The moments of a metric by arm.

    cap, uncapped: the cap of a metric with `winsorize`, and the moments without the cap; else None.
    share_at_cap: the share of units that do not exceed the cap, if it makes the sums of all units the same
        although they differ; else None.
    early: outcomes by arm that do not count because they came before their unit's exposure.
    """

    moments: Mapping[str, Moments]
    cap: float | None = None
    uncapped: Mapping[str, Moments] | None = None
    share_at_cap: float | None = None
    early: Mapping[str, int] = field(default_factory=dict)


def measure(
    store: Store,
    experiment: str,
    metric: Metric,
    now: float,
    during: Comparison | None = None,
    until: float | None = None,
) -> Measured:
    """Return the moments of the units' values, denominators and covariates by arm.

    A metric's outcomes count after the unit's exposure, and a covariate's before it; an outcome of the last
    second before it counts as after. A unit without outcomes counts as 0.
    now: seconds since the epoch; units whose window is not over by then are left out.
    during: the compared arms and when they ran (comparison.py); None takes all units and all outcomes.
    until: leaves out exposures and outcomes of later times, and does not count early ones; None leaves out
        none.
    """
    with store.read(seconds=SECONDS) as db:
        units = _units(experiment, metric, now, during, until)
        plain = _moments_by_arm(db, units, [units.c.value, units.c.denominator, units.c.covariate])
        early = {} if until is not None else _early(db, experiment, metric, during)
        if metric.winsorize is None:
            return Measured(plain, early=early)
        cap, lowest = _quantile(db, units, metric.winsorize)
        if cap is None:
            return Measured(plain, None, plain, early=early)
        share = _share_at(db, units, cap) if cap == lowest else None
        units = _capped(units, cap)
        capped = _moments_by_arm(db, units, [units.c.value, units.c.denominator, units.c.covariate])
        return Measured(capped, cap, plain, share, early)


def shadow_moments(store: Store, experiment: str) -> dict[str, dict[str, Moments]]:
    """Return the moments of the units' means of the requests' measures, by measure and arm.

    VALUE is a unit's mean and DENOMINATOR the number of its requests. The requests of one unit are alike, so
    they are one observation. A request without a unit stands for a unit of its own.
    """
    table = shadow_results
    alone = case((table.c.unit.is_(None), table.c.number), else_=0)
    moments = {}
    with store.read(seconds=SECONDS) as db:
        for name in SHADOW_MEASURES:
            column = table.c[name]
            units = (
                select(table.c.arm, func.avg(column).label("value"), func.count().label("requests"))
                .where(table.c.experiment == experiment, column.is_not(None))
                .group_by(table.c.arm, table.c.unit, alone)
                .subquery()
            )
            moments[name] = _moments_by_arm(db, units, [units.c.value, units.c.requests, literal(0.0)])
    return moments


def shadow_histogram(store: Store, experiment: str) -> dict[str, dict[int, int]]:
    """Return the pairs by arm and by the bin of their |score difference|."""
    table = shadow_histograms
    query = (
        select(table.c.arm, table.c.bin, func.sum(table.c.pairs).label("pairs"))
        .where(table.c.experiment == experiment)
        .group_by(table.c.arm, table.c.bin)
    )
    histograms: dict[str, dict[int, int]] = {}
    with store.read(seconds=SECONDS) as db:
        for row in db.execute(query):
            histograms.setdefault(row.arm, {})[row.bin] = int(row.pairs)
    return histograms


def _units(
    experiment: str, metric: Metric, now: float, during: Comparison | None, until: float | None
) -> Subquery:
    """Return a query with one row per unit: arm, value, denominator, covariate."""
    window_s = None if metric.window_hours is None else metric.window_hours * 3600
    exposed = exposures if during is None else during.units(experiment)
    since = exposed.c.time - WHOLE_SECOND
    counts = outcomes.c.time > since
    before = outcomes.c.time <= since
    if window_s is not None:  # a unit whose treatment ended within its window is left out below
        counts = and_(counts, outcomes.c.time < exposed.c.time + window_s)
    elif during is not None:
        counts = and_(counts, during.lasts(exposed, outcomes.c.time))
    if during is not None:
        before = and_(before, during.outside_pauses(outcomes.c.time))
    if until is not None:
        counts = and_(counts, outcomes.c.time <= until)

    def total(name: str | None, when: ColumnElement[bool]) -> ColumnElement[Any]:
        if name is None:
            return literal(0.0)
        return func.sum(case((and_(outcomes.c.metric == name, when), outcomes.c.value), else_=0.0))

    names = {metric.name, metric.denominator, metric.covariate} - {None}
    value = total(metric.name, counts)
    if metric.kind == "proportion":
        value = case((value > 0, 1.0), else_=0.0)
    joined = exposed.outerjoin(
        outcomes,
        and_(
            outcomes.c.experiment == exposed.c.experiment,
            outcomes.c.unit == exposed.c.unit,
            outcomes.c.metric.in_(sorted(str(name) for name in names)),
        ),
    )
    query = (
        select(
            exposed.c.arm,
            value.label("value"),
            total(metric.denominator, counts).label("denominator"),
            total(metric.covariate, before).label("covariate"),
        )
        .select_from(joined)
        .where(exposed.c.experiment == experiment)
        .group_by(exposed.c.unit, exposed.c.arm)
    )
    if until is not None:
        query = query.where(exposed.c.time <= until)
    if window_s is not None:
        query = query.where(exposed.c.time <= now - window_s)
        if during is not None:
            query = query.where(during.lasts_through(exposed, window_s))
    return query.subquery()


def _early(db: Connection, experiment: str, metric: Metric, during: Comparison | None) -> dict[str, int]:
    """Return by arm how many outcomes of the metric came before their unit's exposure, and so do not count.

    If the metric is its own covariate, such outcomes are its past. Then those of the last minute count here.
    """
    exposed = exposures if during is None else during.units(experiment)
    since = exposed.c.time - WHOLE_SECOND
    is_early = and_(
        outcomes.c.metric.in_([metric.name, metric.denominator or metric.name]), outcomes.c.time <= since
    )
    if metric.covariate is not None:
        is_past = and_(outcomes.c.metric == metric.covariate, outcomes.c.time <= since - SKEW_SECONDS)
        is_early = and_(is_early, not_(is_past))
    if during is not None:
        is_early = and_(is_early, during.outside_pauses(outcomes.c.time))
    same = and_(outcomes.c.experiment == exposed.c.experiment, outcomes.c.unit == exposed.c.unit)
    query = (
        select(exposed.c.arm, func.count())
        .select_from(exposed.join(outcomes, same))
        .where(exposed.c.experiment == experiment, is_early)
        .group_by(exposed.c.arm)
    )
    return {arm: int(number) for arm, number in db.execute(query)}


def _quantile(db: Connection, units: Subquery, fraction: float) -> tuple[float | None, float | None]:
    """Return the smallest value that at least this fraction of the units does not exceed, and the lowest."""
    number, lowest = db.execute(select(func.count(), func.min(units.c.value)).select_from(units)).one()
    index = max(0, int(np.ceil(fraction * number)) - 1)
    return db.scalar(select(units.c.value).order_by(units.c.value).limit(1).offset(index)), lowest


def _share_at(db: Connection, units: Subquery, lowest: float) -> float | None:
    """Return the share of units whose value is the lowest; None if it is that of all."""
    is_above = case((units.c.value > lowest, 1), else_=0)
    number, above = db.execute(select(func.count(), func.sum(is_above)).select_from(units)).one()
    return 1 - above / number if above else None


def _capped(units: Subquery, cap: float) -> Subquery:
    value = case((units.c.value > cap, cap), else_=units.c.value)
    return select(units.c.arm, value.label("value"), units.c.denominator, units.c.covariate).subquery()


def _moments_by_arm(
    db: Connection, rows: FromClause, columns: list[ColumnElement[Any]]
) -> dict[str, Moments]:
    """Return the moments of the columns by arm.

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
        func.sum(shifted[VALUE] * shifted[VALUE] * shifted[VALUE]),
    ).group_by(rows.c.arm)
    moments = {}
    for arm, units, *sums in db.execute(query):
        products = np.zeros((3, 3))
        for (i, j), total in zip(pairs, sums[3:-1], strict=True):
            products[i, j] = products[j, i] = total
        moments[arm] = Moments.from_sums(
            float(units), np.array(sums[:3], np.float64), products, sums[-1], centre
        )
    return moments
