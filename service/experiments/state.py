"""The state of an experiment, computed from the log of its actions.

The log is in the database, so that a new replica sees a rollback as the old ones do.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

from headroom.service.experiments.buckets import NO_BUCKET, ByArm, Span
from headroom.service.experiments.definition import ALL_SLOTS, ExperimentConfig
from headroom.service.experiments.events import Action, Log, Terms

Status = Literal["pending", "running", "stopped", "shipped", "rolled_back", "changed", "paused"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one experiment now.

    status: `pending` until the start is recorded in the database; `rolled_back` when no treatment arm is
        left; `changed` if the config's salt or arms differ from those at the start, which would mix two
        experiments; `paused` while the config stands in the way of an experiment that was started without a
        file.
    traffic: the exposed share of each arm's range: what somebody ramped to, else the config's by the log.
    rolled_back: arms whose units get the default, and are not exposed.
    shipped: the arm that everybody gets, unless the experiment is paused.
    started, ended: Unix seconds; ended: since when no unit is assigned any more.
    deleted: since when its lists, clicks and outcomes are deleted, in Unix seconds.
    terms: the last that the log has; None in a log of release 0.2, where the config's apply.
    may_ship_again: whether it is stopped because somebody took its ship back.
    """

    status: Status = "pending"
    traffic: float = 0.0
    rolled_back: frozenset[str] = frozenset()
    shipped: str | None = None
    started: float | None = None
    ended: float | None = None
    deleted: float | None = None
    terms: Terms | None = None
    may_ship_again: bool = False

    @property
    def is_running(self) -> bool:
        """True while units are assigned."""
        return self.status == "running"

    @property
    def is_over(self) -> bool:
        """True once no unit will be assigned any more, so that others may have its slots."""
        return self.status in ("stopped", "shipped", "rolled_back")


IDLE = Standing()

Standings = Mapping[str, Standing]
"""By experiment."""


def identity(config: ExperimentConfig) -> str:
    """Return what must not change while an experiment runs, as recorded at its start: salt, arms and kind."""
    arms = ", ".join(f"{arm.name}={arm.variant}:{arm.weight}" for arm in config.arms)
    kind = "" if config.kind == "ab" else f"; kind {config.kind}"
    return f"salt {config.salt}; arms {arms}{kind}"


def terms_of(config: ExperimentConfig, definitions: Mapping[str, str], *, in_force: bool = True) -> Terms:
    """Return an experiment's terms as the config has them.

    definitions: what each variant computes with, by its name. in_force: whether units get their arm.
    """
    variants = {arm.variant: definitions[arm.variant] for arm in config.arms if arm.variant in definitions}
    return Terms(config.traffic, config.slots, config.planned_units, variants, in_force)


def fold(config: ExperimentConfig, actions: Log) -> Standing:
    """Return the standing that an experiment's actions, in the order of the log, lead to."""
    arms = {arm.name for arm in config.arms}
    start: Action | None = None
    terms: Terms | None = None
    ramped: float | None = None
    shipped: str | None = None
    is_stopped = False
    may_ship_again = False
    rolled_back: set[str] = set()
    ended_at: float | None = None
    deleted_at: float | None = None
    for action in actions:
        match action.kind:
            case "start":
                start = start or action
            case "ramp" if action.traffic is not None:
                ramped = action.traffic
            case "stop" | "rollback" if action.ends_experiment:
                shipped = None
                is_stopped = True
                may_ship_again = action.kind == "rollback"
            case "ship" if action.arm in arms:
                shipped = action.arm
            case "rollback" if action.arm in arms and action.arm != config.control:
                rolled_back.add(action.arm)
            case "delete":
                deleted_at = action.time
            case _:
                pass  # the action is about an arm that the config no longer has
        terms = action.terms or terms
        is_over = is_stopped or shipped is not None or rolled_back.issuperset(config.treatments)
        if is_over and ended_at is None:
            ended_at = action.time
    if start is None:
        return IDLE
    traffic = ramped if ramped is not None else (terms or config).traffic
    ended = Standing(
        rolled_back=frozenset(rolled_back),
        shipped=shipped,
        started=start.time,
        ended=ended_at,
        deleted=deleted_at,
        terms=terms,
    )
    if start.detail != identity(config):
        return replace(ended, status="changed", shipped=None)
    if shipped is not None:
        return replace(ended, status="shipped")
    if is_stopped:
        return replace(ended, status="stopped", may_ship_again=may_ship_again)
    if rolled_back.issuperset(config.treatments):
        return replace(ended, status="rolled_back")
    return replace(ended, status="running", traffic=traffic)


def as_begun(config: ExperimentConfig, actions: Log) -> ExperimentConfig:
    """Return the experiment with the traffic, slots and planned units of its start, as the log has them.

    A start by release 0.2 has none. Its slots and planned units are then the first recorded ones, or else the
    config's. Its traffic is taken as 1: no unit was exposed that this includes wrongly.
    """
    start = next((action for action in actions if action.kind == "start"), None)
    terms = next((action.terms for action in actions if action.terms is not None), None)
    begun: dict[str, Any] = {}
    if terms is not None:
        begun = {"traffic": terms.traffic, "slots": terms.slots, "planned_units": terms.planned_units}
    if start is None or start.terms is None:
        begun["traffic"] = 1.0
    return config.model_copy(update=begun)


def check_one_shipped(standings: Standings) -> None:
    """Raise ValueError if two experiments have shipped: only one variant can be everybody's."""
    shipped = [name for name, standing in standings.items() if standing.status == "shipped"]
    if len(shipped) > 1:
        raise ValueError(
            f"experiments: {' and '.join(map(repr, shipped))} have each shipped an arm, and everybody can "
            "get only one variant: make the one that is to stay the `default`, and take its experiment out"
        )


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A time during which units lack their arm: units whose bucket or slot is not exposed.

    time, until: Unix seconds. limits: the bucket after the last exposed one, by arm; an arm that is missing
        was rolled back, and after the end all are. slots: the exposed ones.
    """

    time: float
    limits: ByArm
    slots: Span = ALL_SLOTS
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class _Extent:
    """The exposed buckets and slots, as `Withdrawal` has them."""

    limits: ByArm = field(default_factory=dict)
    slots: Span = ALL_SLOTS

    def lacks(self, earlier: "_Extent") -> bool:
        """Return whether units that an earlier extent exposed are not exposed."""
        if any(self.limits.get(arm, NO_BUCKET) < limit for arm, limit in earlier.limits.items()):
            return True
        has_slots = self.slots[0] <= earlier.slots[0] and earlier.slots[1] <= self.slots[1]
        return bool(earlier.limits) and not has_slots


def withdrawals(config: ExperimentConfig, actions: Log) -> list[Withdrawal]:
    """Return the withdrawals in order: rollbacks, less traffic, fewer slots, and the end.

    Units get their arm back when the traffic or the slots that they need return.
    """
    config = as_begun(config, actions)
    times: list[float] = []
    extents: list[_Extent] = []
    for actions_so_far, time in enumerate(logged_at(actions), start=1):
        extent = _extent(config, fold(config, actions[:actions_so_far]))
        if not extents or extent != extents[-1]:
            times.append(time)
            extents.append(extent)
    in_order = []
    for index, extent in enumerate(extents):
        if any(extent.lacks(earlier) for earlier in extents[:index]):
            until = times[index + 1] if index + 1 < len(times) else math.inf
            in_order.append(Withdrawal(times[index], extent.limits, extent.slots, until))
    return in_order


def end_of(withdrawals: Iterable[Withdrawal]) -> float:
    """Return when the last arm ended, in Unix seconds; inf while one runs."""
    return min((withdrawal.time for withdrawal in withdrawals if not withdrawal.limits), default=math.inf)


def _extent(config: ExperimentConfig, standing: Standing) -> _Extent:
    """Return what is exposed under a standing."""
    if not standing.is_running:
        return _Extent()
    exposed = config.exposed(standing.traffic, standing.rolled_back)
    terms = standing.terms
    if terms is not None and not terms.in_force:
        return _Extent(dict.fromkeys(exposed, NO_BUCKET))
    limits = {arm: config.spans[arm][0] + buckets for arm, buckets in exposed.items()}
    return _Extent(limits, config.slots if terms is None else terms.slots)


def logged_at(actions: Log) -> list[float]:
    """Return the times of the actions in the order of the log, made to rise: replicas' clocks differ."""
    return list(accumulate((action.time for action in actions), max))
