"""Where an experiment stands: the log of what was done to it, folded into what a request needs to know.

The log is in the database, so that a new replica sees a rollback as the old ones do. Ramp steps are not
written: where a schedule stands follows from the time of the `start`, in every replica alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from service.experiments.config import ExperimentConfig, seconds
from service.experiments.events import Action

Status = Literal["pending", "running", "stopped", "shipped", "rolled_back", "changed"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One experiment now.

    status: `pending` until the start is recorded in the database; `rolled_back` when no treatment arm is
        left;
        `changed` where the config's salt or arms are not those it started with, which would mix two
        experiments.
    traffic: the exposed share of each arm's range.
    rolled_back: arms whose units get the default, and are not exposed.
    shipped: the arm that everybody gets.
    started, next_step: Unix seconds.
    """

    status: Status = "pending"
    traffic: float = 0.0
    rolled_back: frozenset[str] = frozenset()
    shipped: str | None = None
    started: float | None = None
    next_step: float | None = None

    @property
    def is_running(self) -> bool:
        return self.status == "running"


IDLE = Standing()


def identity(config: ExperimentConfig) -> str:
    """What must stay the same while an experiment runs; recorded with its start."""
    arms = ", ".join(f"{arm.name}={arm.variant}:{arm.weight}" for arm in config.arms)
    return f"salt {config.salt}; arms {arms}"


def fold(config: ExperimentConfig, actions: Sequence[Action], now: float) -> Standing:
    """The standing that an experiment's actions, in their order, lead to at a time (Unix seconds)."""
    arms = {arm.name for arm in config.arms}
    started: float | None = None
    override: float | None = None
    began_as = identity(config)
    stopped = False
    shipped: str | None = None
    rolled_back: set[str] = set()
    for action in actions:
        match action.kind:
            case "start" if started is None:
                started, began_as = action.time, action.detail
            case "ramp":
                override, stopped = action.traffic, False
            case "stop":
                stopped, shipped = True, None
            case "ship" if action.arm in arms:
                shipped = action.arm
            case "rollback" if action.arm in arms and action.arm != config.control:
                rolled_back.add(action.arm)
            case "reinstate":
                rolled_back.discard(action.arm or "")
            case _:
                pass  # about an arm that the config no longer has
    if started is None:
        return IDLE
    scheduled, next_step = _scheduled(config, now - started)
    if override is not None:
        scheduled, next_step = override, None
    status: Status = "running"
    if began_as != identity(config):
        status, shipped = "changed", None
    elif shipped is not None:
        status = "shipped"
    elif stopped:
        status = "stopped"
    elif rolled_back.issuperset(config.treatments):
        status = "rolled_back"
    running = status == "running"
    return Standing(
        status=status,
        traffic=scheduled if running else 0.0,
        rolled_back=frozenset(rolled_back),
        shipped=shipped,
        started=started,
        next_step=started + next_step if running and next_step is not None else None,
    )


def _scheduled(config: ExperimentConfig, elapsed: float) -> tuple[float, float | None]:
    """The ramp's traffic so long after the start, and when after it the next step comes, if any does."""
    end = 0.0
    for traffic, hold in config.ramp:
        end += seconds(hold)
        if elapsed < end:
            return traffic, end
    return config.traffic, None
