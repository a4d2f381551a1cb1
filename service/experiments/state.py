"""The state of an experiment, computed from the log of its actions.

The log is in the database, so that a new replica sees a rollback as the old ones do. Ramp steps are not
written: every replica computes the schedule's step from the time of the `start`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Literal

from service.experiments.definition import ExperimentConfig
from service.experiments.events import Action
from service.experiments.fields import seconds

Status = Literal["pending", "running", "stopped", "shipped", "rolled_back", "changed"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one experiment now.

    status: `pending` until the start is recorded in the database; `rolled_back` when no treatment arm is
        left; `changed` if the config's salt or arms differ from those at the start, which would mix two
        experiments.
    traffic: the exposed share of each arm's range.
    rolled_back: arms whose units get the default, and are not exposed.
    shipped: the arm that everybody gets.
    started, next_step: Unix seconds.
    epoch: the label of the buckets that are exposed, while the experiment runs (`Epoch`).
    """

    status: Status = "pending"
    traffic: float = 0.0
    rolled_back: frozenset[str] = frozenset()
    shipped: str | None = None
    started: float | None = None
    next_step: float | None = None
    epoch: str = ""

    @property
    def is_running(self) -> bool:
        """True while units are assigned."""
        return self.status == "running"


IDLE = Standing()


@dataclass(frozen=True, slots=True)
class Epoch:
    """The exposed buckets of an experiment: the share of traffic, without the arms that are rolled back.

    A unit is counted in the epoch in which it first comes, before its arm can have had any effect on it.
    Whether it comes back is an effect of its arm, so a unit that returns is not counted again.
    """

    traffic: float = 1.0
    rolled_back: tuple[str, ...] = ()

    @classmethod
    def of(cls, traffic: float, rolled_back: Collection[str]) -> Epoch:
        """Make an epoch of arms in any order."""
        return cls(traffic, tuple(sorted(rolled_back)))

    @classmethod
    def parse(cls, label: str) -> Epoch:
        """Return the epoch of a label. The empty label of exposures without epoch stands for all traffic."""
        if not label:
            return cls()
        traffic, _, rolled_back = label.partition(" ")
        return cls(float(traffic), tuple(rolled_back.split(",")) if rolled_back else ())

    @property
    def label(self) -> str:
        """The text that stands for this epoch in the database."""
        return f"{self.traffic!r} {','.join(self.rolled_back)}"


def identity(config: ExperimentConfig) -> str:
    """Return the salt and arms, which must not change while an experiment runs, as recorded at its start."""
    arms = ", ".join(f"{arm.name}={arm.variant}:{arm.weight}" for arm in config.arms)
    return f"salt {config.salt}; arms {arms}"


@dataclass(slots=True)
class _Logged:
    """The state that the log gives, without the schedule."""

    began_as: str
    started: float | None = None
    traffic: float | None = None
    shipped: str | None = None
    is_stopped: bool = False
    rolled_back: set[str] = field(default_factory=set)
    reinstated: dict[str, int] = field(default_factory=dict)  # by arm, the log's length before that

    def status(self, config: ExperimentConfig) -> Status:
        """Return the status of an experiment that has begun."""
        if self.began_as != identity(config):
            return "changed"
        if self.shipped is not None:
            return "shipped"
        if self.is_stopped:
            return "stopped"
        return "rolled_back" if self.rolled_back.issuperset(config.treatments) else "running"


def fold(config: ExperimentConfig, actions: Sequence[Action], now: float) -> Standing:
    """Return the standing that an experiment's actions lead to at a time (Unix seconds)."""
    logged = _read(config, actions)
    if logged.started is None:
        return IDLE
    traffic, next_step = _traffic(config, logged, now)
    status, shipped = logged.status(config), logged.shipped
    if status == "changed":
        shipped = None
    running = status == "running"
    return Standing(
        status=status,
        traffic=traffic if running else 0.0,
        rolled_back=frozenset(logged.rolled_back),
        shipped=shipped,
        started=logged.started,
        next_step=next_step if running else None,
        epoch=Epoch.of(traffic, logged.rolled_back).label if running else "",
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A time in which the same buckets were exposed: from `start` until before `end`, in Unix seconds.

    end: infinite if it still runs. traffic: the exposed share of each arm's range.
    limits: for each exposed arm, the bucket after its last exposed one.
    """

    start: float
    end: float
    traffic: float
    limits: Mapping[str, int]


def runs(config: ExperimentConfig, actions: Sequence[Action], now: float) -> list[Run]:
    """Return the runs of an experiment in order, as if the config had always had its present schedule.

    There are none of an experiment that began with another salt or other arms.
    """
    logged_at = list(accumulate((action.time for action in actions), max))  # replicas' clocks differ
    started = next((action.time for action in actions if action.kind == "start"), now)
    steps = list(accumulate((seconds(hold) for _, hold in config.ramp), initial=started))[1:]
    ran: list[Run] = []
    times = sorted({*logged_at, *(step for step in steps if step <= now)})
    for start, end in pairwise([*times, math.inf]):
        logged = _read(config, actions[: bisect_right(logged_at, start)])
        if logged.started is None or logged.status(config) != "running":
            continue
        traffic, _ = _traffic(config, logged, start)
        spans = config.spans
        exposed = config.exposed(traffic, logged.rolled_back)
        limits = {arm: spans[arm][0] + buckets for arm, buckets in exposed.items() if buckets}
        if ran and ran[-1].end == start and ran[-1].limits == limits:
            ran[-1] = replace(ran[-1], end=end)
        elif limits:
            ran.append(Run(start, end, traffic, limits))
    return ran


def changed_since_start(config: ExperimentConfig, actions: Sequence[Action]) -> str | None:
    """Return a sentence if the experiment began with another salt or other arms than the config's."""
    began_as = _read(config, actions).began_as
    if began_as == identity(config):
        return None
    return (
        f"{config.name!r} began with other arms or another salt than those in this config, so its units "
        f"cannot be analysed with it. It began with {began_as}; this config has {identity(config)}. Pass the "
        f"config that it began with: `headroom experiment report {config.name} --database URL --config FILE`."
    )


def _read(config: ExperimentConfig, actions: Sequence[Action]) -> _Logged:
    arms = {arm.name for arm in config.arms}
    logged = _Logged(identity(config))
    for number, action in enumerate(actions):
        match action.kind:
            case "start" if logged.started is None:
                logged.started, logged.began_as = action.time, action.detail
            case "ramp":
                logged.traffic, logged.is_stopped = action.traffic, False
            case "stop":
                logged.is_stopped, logged.shipped = True, None
            case "ship" if action.arm in arms:
                logged.shipped = action.arm
            case "rollback" if action.arm in arms and action.arm != config.control:
                # A replica that was cut off from the database may have seen what came before a reinstatement.
                # The order of the log says so; the replicas' clocks differ.
                if action.seen is None or action.seen > logged.reinstated.get(action.arm, -1):
                    logged.rolled_back.add(action.arm)
            case "reinstate" if action.arm in arms:
                logged.rolled_back.discard(action.arm)
                logged.reinstated[action.arm] = number
            case _:
                pass  # the action is about an arm that the config no longer has
    return logged


def _traffic(config: ExperimentConfig, logged: _Logged, now: float) -> tuple[float, float | None]:
    """Return the traffic at a time, and the time of the schedule's next step, if there is one."""
    if logged.traffic is not None:
        return logged.traffic, None
    end = logged.started or 0.0
    for traffic, hold in config.ramp:
        end += seconds(hold)
        if now < end:
            return traffic, end
    return config.traffic, None
