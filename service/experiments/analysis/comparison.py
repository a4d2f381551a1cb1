"""Finds the times in which the compared arms ran. Only units and outcomes of these times count.

An arm that was rolled back is compared with control's units of the same time, so that changes in the world
before or after do not look like the arm's effect. An outcome from after the end (a stop, a ship, a rollback,
less traffic) comes from the default in every arm, and would hide the arm's effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, case, false, func, not_, or_, select, true, union_all

from service.experiments.definition.state import Run
from service.experiments.storage.schema import exposures, returns

Condition = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time without a break. limits: by arm, only buckets below these count; None counts all."""

    start: float
    end: float
    limits: Mapping[str, int] | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """Arms that ran at the same times, control among them, and those times.

    has_returns: control ran alone in between. Units that came back to it later count from their return, as
        the units of an arm that was away do.
    """

    arms: tuple[str, ...]
    stretches: tuple[Stretch, ...]
    has_returns: bool

    @classmethod
    def of(cls, arms: Iterable[str], runs: Sequence[Run]) -> Comparison:
        """Compare arms, control among them, while all of them are exposed. runs: the experiment's."""
        arms = tuple(arms)
        indices = [index for index, run in enumerate(runs) if run.limits.keys() >= set(arms)]
        stretches: list[Stretch] = []
        highest = dict.fromkeys(arms, 0)
        for index in indices:
            run = runs[index]
            limits = {arm: run.limits[arm] for arm in arms}
            # The buckets from these limits up to `highest` were exposed before, and are not now.
            is_lower = any(limits[arm] < highest[arm] for arm in arms)
            highest = {arm: max(highest[arm], limits[arm]) for arm in arms}
            last = stretches[-1] if stretches else None
            if last is not None and last.end == run.start and last.limits is None and not is_lower:
                stretches[-1] = Stretch(last.start, run.end, None)
            else:
                start = run.start if index else -math.inf  # nobody was exposed before
                stretches.append(Stretch(start, run.end, limits if is_lower else None))
        between = range(indices[0], indices[-1]) if indices else range(0)
        return cls(arms, tuple(stretches), any(index not in indices for index in between))

    @cached_property
    def _ends(self) -> list[tuple[float, Mapping[str, int] | None]]:
        """The times when units lose their arm, with the limits of the buckets that keep it (None: none)."""
        ends: list[tuple[float, Mapping[str, int] | None]] = []
        for index, stretch in enumerate(self.stretches):
            later = self.stretches[index + 1] if index + 1 < len(self.stretches) else None
            if later is None or later.start != stretch.end:
                if stretch.end < math.inf:
                    ends.append((stretch.end, None))
            elif later.limits is not None:
                ends.append((stretch.end, later.limits))
        return ends

    def units(self, experiment: str) -> FromClause:
        """Return one row per exposed unit: experiment, unit, arm, bucket, time of its first exposure."""
        columns = [exposures.c[name] for name in ("experiment", "unit", "arm", "bucket")]
        theirs = and_(exposures.c.experiment == experiment, exposures.c.arm.in_(self.arms))
        first = select(*columns, exposures.c.time).where(theirs, self._during(exposures.c.time))
        if not self.has_returns:
            return first.subquery()
        same = and_(returns.c.experiment == exposures.c.experiment, returns.c.unit == exposures.c.unit)
        again = (
            select(*columns, returns.c.time)
            .select_from(exposures.join(returns, same))
            .where(theirs, self._during(returns.c.time))
        )
        rows = union_all(first, again).subquery()
        keys = [rows.c.experiment, rows.c.unit, rows.c.arm, rows.c.bucket]
        return select(*keys, func.min(rows.c.time).label("time")).group_by(*keys).subquery()

    def lasts(self, units: FromClause, time: ColumnElement[Any]) -> Condition:
        """Return the condition that a unit of `units()` has its arm at a time after its exposure."""
        return or_(
            false(),
            *(
                and_(self._inside(time, stretch), self._below(units, stretch.limits))
                for stretch in self.stretches
            ),
        )

    def lasts_through(self, units: FromClause, seconds: float) -> Condition:
        """Return the condition that a unit keeps its arm for so long after its exposure, without a break."""
        breaks = (
            and_(
                units.c.time < end,
                units.c.time + seconds > end,
                true() if limits is None else not_(self._below(units, limits)),
            )
            for end, limits in self._ends
        )
        return not_(or_(false(), *breaks))

    def outside_pauses(self, time: ColumnElement[Any]) -> Condition:
        """Return the condition that the compared arms did not pause at a time.

        In a pause control's units have control and the others the default. So what a unit did then is not
        what it did before both arms, although it may come before the unit's return.
        """
        pauses = (
            and_(time >= stretch.end, time < later.start)
            for stretch, later in pairwise(self.stretches)
            if stretch.end < later.start
        )
        return not_(or_(false(), *pauses))

    def _during(self, time: ColumnElement[Any]) -> Condition:
        return or_(false(), *(self._inside(time, stretch) for stretch in self.stretches))

    def _inside(self, time: ColumnElement[Any], stretch: Stretch) -> Condition:
        after = true() if stretch.start == -math.inf else time >= stretch.start
        return and_(after, true() if stretch.end == math.inf else time < stretch.end)

    def _below(self, units: FromClause, limits: Mapping[str, int] | None) -> Condition:
        if limits is None:
            return true()
        return units.c.bucket < case(dict(limits), value=units.c.arm, else_=0)


def comparisons(control: str, others: Sequence[str], runs: Sequence[Run]) -> dict[str, Comparison]:
    """Return each arm's comparison with control. Arms that ran at the same times share one."""
    together: dict[tuple[int, ...], list[str]] = {}
    for arm in others:
        indices = tuple(index for index, run in enumerate(runs) if run.limits.keys() >= {control, arm})
        together.setdefault(indices, []).append(arm)
    by_arm: dict[str, Comparison] = {}
    for arms in together.values():
        shared = Comparison.of([control, *arms], runs)
        by_arm.update(dict.fromkeys(arms, shared))
    return by_arm
