"""Compares the scores and rankings of requests that were scored under two arms."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Row, Select, bindparam, case, func, select

from headroom.models.quality.rankings import CUTOFF, ndcg10
from headroom.service.experiments.estimates import (
    MIN_UNITS,
    Boundary,
    Floats,
    error_of_bounded,
    finite,
)
from headroom.service.experiments.report import ShadowMeasure, ShadowReport
from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import shadow_results

PLANNED_UNITS = 1000
"""Units at which the intervals of the measures are narrowest."""

RANGES = {
    "mean_delta": (-1.0, 1.0),
    "mean_abs_delta": (0.0, 1.0),
    "rank_correlation": (-1.0, 1.0),
    "order_changed": (0.0, 1.0),
    "top10_overlap": (0.0, 1.0),
    "ndcg_loss": (-1.0, 1.0),
    "seconds_delta": (-math.inf, math.inf),
}
"""The values that a measure can have. Without bounds it gets no interval: a rare large one may be missing."""

SAME_ORDER = 1 - 1e-9
"""A rank correlation above this is 1: the rest is rounding."""

OF_SCORES = ("mean_delta", "mean_abs_delta")
"""The measures that need scores of both arms."""

_DERIVED: dict[str, ColumnElement[Any]] = {
    "ndcg_loss": -shadow_results.c.ndcg_delta,
    "order_changed": case(
        (shadow_results.c.rank_correlation < SAME_ORDER, 1.0),
        (shadow_results.c.rank_correlation.is_not(None), 0.0),
    ),
}
"""The measures that are no columns of the table."""


def paired_differences(
    control: NDArray[np.floating],
    arm: NDArray[np.floating],
    grades: Sequence[int] | None,
    raw_scores: Sequence[NDArray[np.floating]],
) -> dict[str, Any]:
    """Return the fields of a ShadowResult that come from the scores of the same titles under two arms.

    control, arm: (n,), n ≥ 1, in the request's order. grades: (n,) judgments from 0, if they are known.
    raw_scores: (n,) of control and of the arm, which rank the titles.
    The rank correlation is Spearman's with mean ranks for ties. The overlap is that of the ten best titles,
    if there are more than ten. NDCG@10 has gain 2^grade − 1 and is None if all grades are equal.
    """
    deltas = np.asarray(arm, np.float64) - np.asarray(control, np.float64)
    of_control = np.asarray(raw_scores[0], np.float64)
    of_arm = np.asarray(raw_scores[1], np.float64)
    return {
        "mean_delta": float(deltas.mean()),
        "mean_abs_delta": float(np.abs(deltas).mean()),
        "rank_correlation": _spearman(of_control, of_arm),
        "top10_overlap": _overlap(of_control, of_arm),
        "ndcg_delta": None if grades is None else _ndcg_delta(of_control, of_arm, grades),
    }


def shadow_reports(
    store: Store, experiment: str, arms: Collection[str], alpha: float, against_order: Collection[str] = ()
) -> dict[str, ShadowReport]:
    """Return the shadow reports by arm, without the arms that have no shadow results.

    alpha: the error rate of each arm's intervals. against_order: the arms that are compared with an order
    that has no scores.
    """
    boundary = Boundary(alpha, PLANNED_UNITS)
    with store.read_all() as db:
        rows = db.execute(_SUMS, {"experiment": experiment}).all()
    reports = {}
    for row in rows:
        names = [name for name in RANGES if name not in OF_SCORES or row.arm not in against_order]
        measures = {name: _measure(row, name, boundary) for name in names if row._mapping[f"{name} units"]}
        if measures:
            reports[row.arm] = ShadowReport(measures)
    return {arm: reports[arm] for arm in arms if arm in reports}


def _sums() -> Select[Any]:
    """Return the query of each measure's units, their requests, and their mean value and square, by arm.

    The requests of one unit are alike, so their mean is one observation. A request without a unit stands for
    a unit of its own.
    """
    table = shadow_results
    values = {name: _DERIVED[name] if name in _DERIVED else table.c[name] for name in RANGES}
    alone = case((table.c.unit.is_(None), table.c.number), else_=0)
    units = (
        select(
            table.c.arm,
            *(func.avg(column).label(name) for name, column in values.items()),
            *(func.count(column).label(f"{name} requests") for name, column in values.items()),
        )
        .where(table.c.experiment == bindparam("experiment"))
        .group_by(table.c.arm, table.c.unit, alone)
        .subquery()
    )
    columns = []
    for name in RANGES:
        value = units.c[name]
        columns += [
            func.count(value).label(f"{name} units"),
            func.sum(units.c[f"{name} requests"]).label(f"{name} requests"),
            func.avg(value).label(f"{name} mean"),
            func.avg(value * value).label(f"{name} square"),
        ]
    return select(units.c.arm, *columns).group_by(units.c.arm)


_SUMS = _sums()


def _measure(row: Row[Any], name: str, boundary: Boundary) -> ShadowMeasure:
    """Return a measure that has a unit, from a row of `_sums`."""
    smallest, largest = RANGES[name]
    units, requests, mean, square = (
        row._mapping[f"{name} {what}"] for what in ("units", "requests", "mean", "square")
    )
    low = high = math.nan
    if units >= MIN_UNITS:
        variance = (square - mean**2) * units / (units - 1)
        error = error_of_bounded(units, mean, variance, largest)
        radius = float(boundary.multiplier(units) * error)
        low = max(smallest, mean - radius)
        high = min(largest, mean + radius)
    return ShadowMeasure(
        requests=int(requests),
        units=units,
        mean=float(mean) + 0.0,  # never -0
        low=finite(low),
        high=finite(high),
    )


def _spearman(control: Floats, arm: Floats) -> float | None:
    left = _centred_ranks(control)
    right = _centred_ranks(arm)
    scale = float(np.sqrt((left @ left) * (right @ right)))
    return None if scale == 0 else float(left @ right) / scale


def _centred_ranks(values: Floats) -> Floats:
    """Return the rank of each value minus the mean rank. Equal values share the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    return np.asarray(ranks - ranks.mean())


def _overlap(control: Floats, arm: Floats) -> float | None:
    if len(control) <= CUTOFF:
        return None
    return len(np.intersect1d(_best(control), _best(arm))) / CUTOFF


def _best(scores: Floats) -> NDArray[np.intp]:
    """Return the indices of the CUTOFF best titles. Ties are in the request's order."""
    return np.argsort(-scores, kind="stable")[:CUTOFF]


def _ndcg_delta(control: Floats, arm: Floats, grades: Sequence[int]) -> float | None:
    truth = np.asarray(grades)
    return None if truth.min() == truth.max() else ndcg10(truth, arm) - ndcg10(truth, control)
