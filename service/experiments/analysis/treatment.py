"""When the arms that are compared ran: only units exposed then, and only what they did meanwhile, count.

An arm that was rolled back is compared with control's units of the same time: what changed in the world
before or after must not look like the arm's doing. An outcome from after the end (a stop, a ship, a rollback,
less traffic) would be the default's in every arm, and hide what the arm did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, case, false, func, not_, or_, select, true, union_all

from service.experiments.definition.state import Run
from service.experiments.storage.schema import exposures, returns

Condition = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time without a break. limits: only buckets below these take part, by arm; None: all exposed ones."""

    start: float
    end: float
    limits: Mapping[str, int] | None


@dataclass(frozen=True, eq=False)
class Treatment:
    """Arms that ran at the same times as each other, control among them, and those times.

    has_returns: control went on alone in between, so that its units of the times after it may have come
        before; they count from when they came again, as the units of an arm that was away do.
    """

    arms: tuple[str, ...]
    stretches: tuple[Stretch, ...]
    has_returns: bool

    @classmethod
    def of(cls, arms: Iterable[str], runs: Sequence[Run]) -> Treatment:
        """arms: control and others; runs: of the experiment. The arms count while all of them are exposed."""
        arms = tuple(arms)
        places = [place for place, run in enumerate(runs) if run.limits.keys() >= set(arms)]
        found: list[Stretch] = []
        highest = dict.fromkeys(arms, 0)
        for place in places:
            run = runs[place]
            limits = {arm: run.limits[arm] for arm in arms}
            # Buckets above these were exposed before, and are not now.
            is_lower = any(limits[arm] < highest[arm] for arm in arms)
            highest = {arm: max(highest[arm], limits[arm]) for arm in arms}
            last = found[-1] if found else None
            if last is not None and last.end == run.start and last.limits is None and not is_lower:
                found[-1] = Stretch(last.start, run.end, None)
            else:
                start = run.start if place else -math.inf  # nobody was exposed before
                found.append(Stretch(start, run.end, limits if is_lower else None))
        between = range(places[0], places[-1]) if places else range(0)
        return cls(arms, tuple(found), any(place not in places for place in between))

    @cached_property
    def _ends(self) -> list[tuple[float, Mapping[str, int] | None]]:
        """When units lose their arm, and the limits of the buckets that keep it then; None: none does."""
        ends: list[tuple[float, Mapping[str, int] | None]] = []
        for place, stretch in enumerate(self.stretches):
            later = self.stretches[place + 1] if place + 1 < len(self.stretches) else None
            if later is None or later.start != stretch.end:
                if stretch.end < math.inf:
                    ends.append((stretch.end, None))
            elif later.limits is not None:
                ends.append((stretch.end, later.limits))
        return ends

    def units(self, experiment: str) -> FromClause:
        """A row per unit that was exposed then: experiment, unit, arm, bucket, time of its first exposure."""
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
        """Whether a unit of `units()` has its arm at a time after its exposure."""
        return or_(
            false(),
            *(
                and_(self._inside(time, stretch), self._below(units, stretch.limits))
                for stretch in self.stretches
            ),
        )

    def lasts_through(self, units: FromClause, seconds: float) -> Condition:
        """Whether a unit keeps its arm for so long after its exposure, without a break."""
        breaks = (
            and_(
                units.c.time < end,
                units.c.time + seconds > end,
                true() if limits is None else not_(self._below(units, limits)),
            )
            for end, limits in self._ends
        )
        return not_(or_(false(), *breaks))

    def _during(self, time: ColumnElement[Any]) -> Condition:
        return or_(false(), *(self._inside(time, stretch) for stretch in self.stretches))

    def _inside(self, time: ColumnElement[Any], stretch: Stretch) -> Condition:
        after = true() if stretch.start == -math.inf else time >= stretch.start
        return and_(after, true() if stretch.end == math.inf else time < stretch.end)

    def _below(self, units: FromClause, limits: Mapping[str, int] | None) -> Condition:
        if limits is None:
            return true()
        return units.c.bucket < case(dict(limits), value=units.c.arm, else_=0)


def treatments(control: str, others: Sequence[str], runs: Sequence[Run]) -> dict[str, Treatment]:
    """By arm: what it is compared by. Arms that ran at the same times share one, and all their units."""
    together: dict[tuple[int, ...], list[str]] = {}
    for arm in others:
        places = tuple(place for place, run in enumerate(runs) if run.limits.keys() >= {control, arm})
        together.setdefault(places, []).append(arm)
    found: dict[str, Treatment] = {}
    for arms in together.values():
        shared = Treatment.of([control, *arms], runs)
        found.update(dict.fromkeys(arms, shared))
    return found
