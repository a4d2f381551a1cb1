"""The state of an experiment, computed from the log of its actions.

The log is in the database, so that a new replica sees a rollback as the old ones do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from headroom.service.experiments.buckets import ByArm
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import Action, Log

Status = Literal["pending", "running", "stopped", "shipped", "rolled_back", "changed", "paused"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one experiment now.

    status: `pending` until the start is recorded in the database; `rolled_back` when no treatment arm is
        left; `changed` if the config's salt or arms differ from those at the start, which would mix two
        experiments; `paused` while the config stands in the way of an experiment that was started without a
        file.
    traffic: the exposed share of each arm's range.
    rolled_back: arms whose units get the default, and are not exposed.
    shipped: the arm that everybody gets, unless the experiment is paused.
    started: Unix seconds.
    may_ship_again: whether it is stopped because somebody took its ship back.
    """

    status: Status = "pending"
    traffic: float = 0.0
    rolled_back: frozenset[str] = frozenset()
    shipped: str | None = None
    started: float | None = None
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


def fold(config: ExperimentConfig, actions: Log) -> Standing:
    """Return the standing that an experiment's actions, in the order of the log, lead to."""
    arms = {arm.name for arm in config.arms}
    start: Action | None = None
    traffic = config.traffic
    shipped: str | None = None
    is_stopped = False
    may_ship_again = False
    rolled_back: set[str] = set()
    for action in actions:
        match action.kind:
            case "start":
                start = start or action
            case "ramp" if action.traffic is not None:
                traffic = action.traffic
            case "stop" | "rollback" if action.ends_experiment:
                shipped = None
                is_stopped = True
                may_ship_again = action.kind == "rollback"
            case "ship" if action.arm in arms:
                shipped = action.arm
            case "rollback" if action.arm in arms and action.arm != config.control:
                rolled_back.add(action.arm)
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
        return replace(ended, status="stopped", may_ship_again=may_ship_again)
    if rolled_back.issuperset(config.treatments):
        return replace(ended, status="rolled_back")
    return replace(ended, status="running", traffic=traffic)


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
    """A time at which units lost their arm: units whose bucket is no longer exposed.

    time: Unix seconds. limits: the bucket after the last exposed one, by arm; empty after the end.
    """

    time: float
    limits: ByArm


def withdrawals(config: ExperimentConfig, actions: Log) -> list[Withdrawal]:
    """Return the withdrawals in order: rollbacks, less traffic, and the end."""
    in_order = []
    previous_limits: dict[str, int] = {}
    for actions_so_far, time in enumerate(logged_at(actions), start=1):
        standing = fold(config, actions[:actions_so_far])
        limits = {}
        if standing.is_running:
            exposed = config.exposed(standing.traffic, standing.rolled_back)
            limits = {arm: config.spans[arm][0] + buckets for arm, buckets in exposed.items()}
        if any(limits.get(arm, 0) < limit for arm, limit in previous_limits.items()):
            in_order.append(Withdrawal(time, limits))
        previous_limits = limits
    return in_order


def logged_at(actions: Log) -> list[float]:
    """Return the times of the actions in the order of the log, made to rise: replicas' clocks differ."""
    return list(accumulate((action.time for action in actions), max))
