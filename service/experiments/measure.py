"""Reads the units of an experiment and their outcomes once, and adds them up for any time.

An arm that was rolled back is compared with control's units of the same time, so that changes in the world
after it do not look like the arm's effect. An outcome of a unit that has lost its arm (a stop, a ship, a
rollback, less traffic, fewer slots) comes from the default, and would hide the arm's effect. A unit that gets
its arm back counts again from then on; its outcomes between do not count, whichever its arm is.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Subquery, func, select

from headroom.service.experiments.buckets import NO_BUCKET
from headroom.service.experiments.clicks import Interleaved, Rows, read_interleaved
from headroom.service.experiments.definition import ExperimentConfig, Metric
from headroom.service.experiments.estimates import COVARIATE, VALUE, Moments
from headroom.service.experiments.state import Experiment, Period
from headroom.service.experiments.tables import exposures, outcomes

WHOLE_SECOND = 1.0
"""Many callers round times down to whole seconds, so an outcome may seem up to this much older."""

SKEW_SECONDS = 60.0
"""If an outcome is older than its unit's exposure by less than this, the sender's clock is probably slow."""

ROWS_AT_ONCE = 1_000
"""Rows that PostgreSQL's driver holds; it would hold all of them."""

UNIT = np.dtype([("arm", "i8"), ("bucket", "i8"), ("slot", "i8"), ("time", "f8"), ("other", "f8")])
"""A unit at its first exposure; units are sorted by name. Times are Unix seconds.

arm: its index in `Facts.arms`. slot: 0 if the caller chose the arm. other: when the unit came to another arm;
NaN if it did not.
"""

OUTCOME = np.dtype([("unit", "i8"), ("time", "f8"), ("value", "f8")])
"""An outcome. unit: an index of `Facts.units`."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Facts:
    """The exposed units of an experiment, and their outcomes.

    arms: the index of each. units: (units,) UNIT. outcomes: (outcomes,) OUTCOME of each metric.
    seen: what the units saw and clicked, instead of outcomes, if the experiment interleaves.
    """

    arms: Mapping[str, int]
    units: Rows
    outcomes: Mapping[str, Rows]
    seen: Interleaved | None = None

    def until(self, moment: float) -> Self:
        """Return what had happened by a time. A unit that was exposed later has the time inf."""
        units = self.units.copy()
        units["time"][units["time"] > moment] = math.inf
        units["other"][units["other"] > moment] = math.nan
        by_metric = {name: rows[rows["time"] <= moment] for name, rows in self.outcomes.items()}
        seen = None if self.seen is None else self.seen.until(moment, units["time"])
        return replace(self, units=units, outcomes=by_metric, seen=seen)

    @property
    def in_one_arm(self) -> Mask:
        """Which units were exposed, and to no other arm, (units,)."""
        return np.asarray(np.isfinite(self.units["time"]) & np.isnan(self.units["other"]))

    def exposed(self) -> dict[str, int]:
        """Return the units of each arm, without those that came to several."""
        counts = np.bincount(self.units["arm"][self.in_one_arm], minlength=len(self.arms))
        return dict(zip(self.arms, counts.tolist(), strict=True))


def read_facts(db: Connection, experiment: Experiment) -> Facts:
    """Read the facts of an experiment. Their order follows from them alone, so sums are the same bits."""
    config = experiment.config
    arms = {arm: index for index, arm in enumerate(config.spans)}
    units_of = _indexed_units(config.name)
    units = np.fromiter(_units(db, config.name, arms), UNIT)
    if config.is_interleaved:
        names_of_units = db.scalars(select(units_of.c.unit).order_by(units_of.c.index))
        index_of = {unit: index for index, unit in enumerate(names_of_units)}
        return Facts(arms, units, {}, read_interleaved(db, experiment, index_of))
    names = {name for metric in config.metrics for name in metric.sources}
    by_metric = {name: np.fromiter(_outcomes(db, units_of, config.name, name), OUTCOME) for name in names}
    return Facts(arms, units, by_metric)


def _units(db: Connection, experiment: str, arms: dict[str, int]) -> Iterator[tuple[float, ...]]:
    """Yield the units as UNIT has them. Adds arms that the config does not have to `arms`."""
    table = exposures.c
    of_unit: Any = {"partition_by": table.unit, "order_by": (table.time, table.arm)}
    ranked = select(
        *(table.unit, table.arm, table.bucket, func.coalesce(table.slot, 0).label("slot"), table.time),
        func.lead(table.time).over(**of_unit).label("other"),
        func.row_number().over(**of_unit).label("rank"),
    )
    each = ranked.where(table.experiment == experiment).subquery().c
    query = select(each.arm, each.bucket, each.slot, each.time, each.other)
    query = query.where(each.rank == 1).order_by(each.unit)
    for arm, bucket, slot, time, other in _stream(db, query):
        index = arms.setdefault(arm, len(arms))
        yield index, bucket, slot, time, math.nan if other is None else other


def _indexed_units(experiment: str) -> Subquery:
    """Return the query of the units and their indices."""
    unit = exposures.c.unit
    index = func.row_number().over(order_by=unit) - 1
    query = select(unit, index.label("index")).where(exposures.c.experiment == experiment)
    return query.group_by(unit).subquery()


def _outcomes(db: Connection, units: Subquery, experiment: str, metric: str) -> Iterator[tuple[float, ...]]:
    """Return the outcomes of exposed units as OUTCOME has them."""
    sent = outcomes.c
    query = select(units.c.index, sent.time, sent.value).join_from(units, outcomes, sent.unit == units.c.unit)
    query = query.where(sent.experiment == experiment, sent.metric == metric)
    return map(tuple, _stream(db, query.order_by(units.c.index, sent.time, sent.value)))


def _stream(db: Connection, query: Any) -> Any:
    return db.execute(query.execution_options(yield_per=ROWS_AT_ONCE))


@dataclass(frozen=True)
class Comparison:
    """Control and an arm, as long as the arm ran.

    end: when the arm ended; inf while it runs. periods: which units were exposed when, until then.
    """

    arms: tuple[str, str]
    periods: tuple[Period, ...]
    end: float = math.inf

    def had_arm(self, facts: Facts, rows: Rows) -> Mask:
        """Return which outcomes came while their unit had its arm. rows: (outcomes,) OUTCOME."""
        had = np.zeros(len(rows), bool)
        for period in self.periods:
            is_within = (rows["time"] >= period.since) & (rows["time"] < period.until)
            had |= is_within & _exposes(period, facts)[rows["unit"]]
        return had

    def had_arm_throughout(self, facts: Facts, seconds: float) -> Mask:
        """Return which units had their arm from their exposure on for so many seconds, (units,)."""
        begin = facts.units["time"]
        had: Mask = begin + seconds < self.end
        for period in self.periods:
            is_touched = (begin + seconds >= period.since) & (begin < period.until)
            had &= ~is_touched | _exposes(period, facts)
        return had


def comparison(experiment: Experiment, arm: str) -> Comparison:
    """Return an arm's comparison with control."""
    first, *later = experiment.periods
    known = [replace(first, since=-math.inf), *later]  # callers round times down, also below the start
    end = next((period.since for period in known if arm not in period.limits), math.inf)
    periods = [period for period in known if period.since < end]
    return Comparison((experiment.config.control, arm), tuple(periods), end)


def _exposes(period: Period, facts: Facts) -> Mask:
    """Return which units a period exposes, (units,). The caller's own choice has no slot."""
    units = facts.units
    limits = np.array([period.limits.get(arm, NO_BUCKET) for arm in facts.arms])
    first, end = period.slots
    is_in_slots = (units["slot"] >= first) & (units["slot"] < end)
    exposes: Mask = (units["bucket"] < limits[units["arm"]]) & (is_in_slots | (units["bucket"] == NO_BUCKET))
    return exposes


def measure(facts: Facts, metric: Metric, during: Comparison, now: float) -> dict[str, Moments]:
    """Return the moments of the units' values, denominators and covariates, of control and of the arm.

    A metric's outcomes count after the unit's exposure, and a covariate's before it; an outcome of the last
    second before it counts as after. A unit without outcomes counts as 0.
    now: seconds since the epoch; units whose window is not over by then are left out.
    """
    units = facts.units
    counted = facts.in_one_arm & (units["time"] < during.end)
    if metric.window_s is not None:  # a unit that lost its arm within its window is left out as a whole
        counted &= units["time"] <= now - metric.window_s
        counted &= during.had_arm_throughout(facts, metric.window_s)
    numbers = np.zeros((len(units), 3))
    for column, name in enumerate((metric.name, metric.denominator, metric.covariate)):
        if name is None:
            continue
        rows = facts.outcomes[name]
        exposed = units["time"][rows["unit"]]
        counts = rows["time"] > exposed - WHOLE_SECOND
        if column == COVARIATE:
            counts = ~counts
        elif metric.window_s is None:
            counts &= during.had_arm(facts, rows)
        else:
            counts &= rows["time"] < exposed + metric.window_s
        numbers[:, column] = np.bincount(rows["unit"][counts], rows["value"][counts], len(units))
    if metric.kind == "proportion":
        numbers[:, VALUE] = numbers[:, VALUE] > 0
    return {arm: Moments.of(numbers[counted & (units["arm"] == facts.arms[arm])]) for arm in during.arms}


def count_early(facts: Facts, config: ExperimentConfig) -> dict[str, int]:
    """Return by arm the outcomes from the minute before their unit's exposure, which do not count."""
    names = {name for metric in config.metrics for name in (metric.name, metric.denominator) if name}
    is_in_one_arm = facts.in_one_arm
    early = np.zeros(len(facts.arms), int)
    for name in names:
        rows = facts.outcomes[name]
        since_exposure = rows["time"] - facts.units["time"][rows["unit"]] + WHOLE_SECOND
        is_early = (since_exposure <= 0) & (since_exposure > -SKEW_SECONDS) & is_in_one_arm[rows["unit"]]
        early += np.bincount(facts.units["arm"][rows["unit"][is_early]], minlength=len(early))
    return dict(zip(facts.arms, early.tolist(), strict=True))
