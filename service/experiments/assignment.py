"""Assigns units to arms by the contract's rules: slots, then the arm's buckets."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

from headroom.service.experiments.buckets import Span, bucket, is_exposed
from headroom.service.experiments.definition import LAYER_SALT, ExperimentConfig
from headroom.service.experiments.state import IDLE, Standings


@dataclass(frozen=True, slots=True)
class Assigned:
    """The arm of one request.

    fallback: the control's variant, which answers if this arm fails; None if this is the control.
    """

    experiment: str
    arm: str
    variant: str
    bucket: int
    fallback: str | None


@dataclass(frozen=True)
class Assigner:
    """The experiments of one live config. Immutable, so that a request sees one config from start to end."""

    experiments: tuple[ExperimentConfig, ...] = ()

    @cached_property
    def _spans(self) -> dict[str, list[Span]]:
        """The ranges of buckets of each experiment's arms, in order."""
        return {config.name: list(config.spans.values()) for config in self.experiments}

    def assign(self, unit: str, standings: Standings) -> Assigned | None:
        """Return the arm that a unit is exposed to.

        None if the unit is in no running experiment or outside the traffic, or if its arm is rolled back.
        standings: by experiment; an experiment that is missing does not run.
        """
        slot = bucket(LAYER_SALT, unit) if self.experiments else -1
        config = next((each for each in self.experiments if _has_slot(each, slot, standings)), None)
        if config is None:
            return None
        standing = standings.get(config.name, IDLE)
        spans = self._spans[config.name]
        position = bucket(config.salt, unit)
        index = bisect_right(spans, position, key=itemgetter(1))
        arm = config.arms[index]
        if (
            not standing.is_running
            or arm.name in standing.rolled_back
            or not is_exposed(position, spans[index], standing.traffic)
        ):
            return None
        fallback = None if arm.name == config.control else config.variant_of(config.control)
        return Assigned(config.name, arm.name, arm.variant, position, fallback)

    def shipped(self, standings: Standings) -> str | None:
        """Return the variant that an experiment has shipped, if any; `check_one_shipped` allows one."""
        for config in self.experiments:
            standing = standings.get(config.name, IDLE)
            if standing.status == "shipped" and standing.shipped is not None:
                return config.variant_of(standing.shipped)
        return None

    def shadowed(self, standings: Standings) -> list[ExperimentConfig]:
        """Return the running experiments with a shadow share."""
        return [
            config
            for config in self.experiments
            if config.shadow and standings.get(config.name, IDLE).is_running
        ]


def _has_slot(config: ExperimentConfig, slot: int, standings: Standings) -> bool:
    """Return whether a slot is one of the experiment's, which gives its slots up once it is over."""
    start, end = config.slots
    return start <= slot < end and not standings.get(config.name, IDLE).is_over
