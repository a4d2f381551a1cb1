"""The state of an experiment, computed from the log of its actions.

The log is in the database, so that a new replica sees a rollback as the old ones do. Ramp steps are not
written: every replica computes the schedule's step from the time of the `start`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    rolled_back: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, label: str) -> Epoch:
        """Return the epoch of a label. The empty label of exposures without epoch stands for all traffic."""
        traffic, _, rolled_back = label.partition(" ")
        return cls(float(traffic or 1.0), frozenset(rolled_back.split(",")) - {""})

    @property
    def label(self) -> str:
        """The text that stands for this epoch in the database."""
        return f"{self.traffic!r} {','.join(sorted(self.rolled_back))}"


def identity(config: ExperimentConfig) -> str:
    """Return the salt and arms, which must not change while an experiment runs, as recorded at its start."""
    arms = ", ".join(f"{arm.name}={arm.variant}:{arm.weight}" for arm in config.arms)
    return f"salt {config.salt}; arms {arms}"


def fold(config: ExperimentConfig, actions: Sequence[Action], now: float) -> Standing:
    """Return the standing that an experiment's actions lead to at a time (Unix seconds)."""
    arms = {arm.name for arm in config.arms}
    start: Action | None = None
    traffic: float | None = None
    shipped: str | None = None
    is_stopped = False
    rolled_back: set[str] = set()
    reinstated: dict[str, int] = {}  # by arm, the log's length before that
    for number, action in enumerate(actions):
        match action.kind:
            case "start":
                start = start or action
            case "ramp":
                traffic, is_stopped = action.traffic, False
            case "stop":
                shipped, is_stopped = None, True
            case "ship" if action.arm in arms:
                shipped = action.arm
            case "rollback" if action.arm in arms and action.arm != config.control:
                # A replica that was cut off from the database may have seen what came before a reinstatement.
                # The order of the log says so; the replicas' clocks differ.
                if action.seen is None or action.seen > reinstated.get(action.arm, -1):
                    rolled_back.add(action.arm)
            case "reinstate" if action.arm in arms:
                rolled_back.discard(action.arm)
                reinstated[action.arm] = number
            case _:
                pass  # the action is about an arm that the config no longer has
    if start is None:
        return IDLE
    ended = Standing(rolled_back=frozenset(rolled_back), shipped=shipped, started=start.time)
    if start.detail != identity(config):
        return replace(ended, status="changed", shipped=None)
    if shipped is not None:
        return replace(ended, status="shipped")
    if is_stopped:
        return replace(ended, status="stopped")
    if rolled_back.issuperset(config.treatments):
        return replace(ended, status="rolled_back")
    next_step = None
    if traffic is None:
        traffic, next_step = _scheduled(config, start.time, now)
    epoch = Epoch(traffic, ended.rolled_back).label
    return replace(ended, status="running", traffic=traffic, next_step=next_step, epoch=epoch)


def _scheduled(config: ExperimentConfig, start: float, now: float) -> tuple[float, float | None]:
    """Return the schedule's traffic at a time, and the time of its next step, if there is one."""
    end = start
    for traffic, hold in config.ramp:
        end += seconds(hold)
        if now < end:
            return traffic, end
    return config.traffic, None


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
        standing = fold(config, actions[: bisect_right(logged_at, start)], start)
        if not standing.is_running:
            continue
        spans = config.spans
        exposed = config.exposed(standing.traffic, standing.rolled_back)
        limits = {arm: spans[arm][0] + buckets for arm, buckets in exposed.items() if buckets}
        if ran and ran[-1].end == start and ran[-1].limits == limits:
            ran[-1] = replace(ran[-1], end=end)
        elif limits:
            ran.append(Run(start, end, standing.traffic, limits))
    return ran


def changed_since_start(config: ExperimentConfig, actions: Sequence[Action]) -> str | None:
    """Return a sentence if the experiment began with another salt or other arms than the config's."""
    start = next((action for action in actions if action.kind == "start"), None)
    if start is None or start.detail == identity(config):
        return None
    return (
        f"{config.name!r} began with other arms or another salt than those in this config, so its units "
        f"cannot be analysed with it. It began with {start.detail}; this config has {identity(config)}. Pass "
        "the config that it began with: "
        f"`headroom experiment report {config.name} --database URL --config FILE`."
    )
