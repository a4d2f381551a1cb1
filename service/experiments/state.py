"""The state of one experiment, and the times in which its arms exposed units."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headroom.service.experiments.buckets import BUCKETS, NO_BUCKET, ByArm, Span
from headroom.service.experiments.definition import ALL_SLOTS, ExperimentConfig
from headroom.service.experiments.events import Action

Source = Literal["config", "http"]
Status = Literal["pending", "running", "paused", "stopped", "shipped", "rolled_back"]


@dataclass(frozen=True, slots=True)
class Period:
    """A time in which the same units are exposed, from `since` to `until`, in Unix seconds.

    limits: the bucket after the last exposed one, by arm; an arm that has ended is missing.
    slots: the exposed ones.
    """

    since: float
    limits: ByArm
    slots: Span = ALL_SLOTS
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment, as the rows of the log so far have it.

    config: as the last row with the same identity declared it, but with the planned units of the first one.
    source: the kind of its first row, or `config` once a config declares it.
    started, end: Unix seconds, or inf. end: since when no unit is assigned any more.
    paused: why the config in force keeps it from running, or its shipped arm from everybody; as a clause.
    ramped: the traffic that somebody set by hand.
    shipped: the arm that it has shipped; `everybody_gets` says whether that is in force.
    rolled_back: arms whose units get the default, and are not exposed.
    over_since: the time of its last stop, ship or rollback, if it is over.
    deleted: since when its lists, clicks and outcomes are deleted, in Unix seconds.
    variants, variant_changes: the definition of each of its variants, and when it was first changed.
    """

    config: ExperimentConfig
    source: Source = "config"
    started: float = math.inf
    paused: str | None = None
    ramped: float | None = None
    is_stopped: bool = False
    shipped: str | None = None
    rolled_back: frozenset[str] = frozenset()
    end: float = math.inf
    over_since: float | None = None
    deleted: float | None = None
    variants: Mapping[str, str] = field(default_factory=dict)
    variant_changes: Mapping[str, float] = field(default_factory=dict)
    periods: tuple[Period, ...] = ()
    history: tuple[Action, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether no unit will be assigned any more, so that others may have its slots.

        It is stopped, has shipped, or has no treatment arm left; for ever.
        """
        return self.end < math.inf

    @property
    def status(self) -> Status:
        """The state in one word: `pending` until a row declares it."""
        if self.started == math.inf:
            return "pending"
        if self.shipped is not None:
            return "shipped"
        if self.is_stopped:
            return "stopped"
        if self.is_over:
            return "rolled_back"
        return "running" if self.paused is None else "paused"

    @property
    def is_running(self) -> bool:
        """Whether units are assigned."""
        return self.status == "running"

    @property
    def traffic(self) -> float:
        """The exposed share of each arm's range; 0 unless it runs."""
        if not self.is_running:
            return 0.0
        return self.config.traffic if self.ramped is None else self.ramped

    @property
    def exposed_share(self) -> float:
        """The share of all units that it exposes, by its slots, traffic and arms; 0 to 1."""
        first, end = self.config.slots
        exposed = sum(self.config.exposed(self.traffic, self.rolled_back).values())
        return (end - first) / BUCKETS * exposed / BUCKETS

    @property
    def everybody_gets(self) -> str | None:
        """The shipped arm; None also if the config in force keeps it from everybody."""
        return self.shipped if self.paused is None else None

    @property
    def limits(self) -> ByArm:
        """The bucket after the last exposed one, by arm; an arm that has ended is missing."""
        if self.is_over:
            return {}
        if not self.is_running:
            return dict.fromkeys(self.config.exposed(1.0, self.rolled_back), NO_BUCKET)
        exposed = self.config.exposed(self.traffic, self.rolled_back)
        return {arm: self.config.spans[arm][0] + buckets for arm, buckets in exposed.items()}


Experiments = Mapping[str, Experiment]
"""By name."""
