"""Assigns units to arms by the contract's rules: holdout, slots, `where`, then the arm's buckets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from service.experiments.buckets import BUCKETS, bucket, is_exposed
from service.experiments.definition import LAYER_SALT, ExperimentConfig, HoldoutConfig
from service.experiments.fields import Attribute
from service.experiments.state import IDLE, Standing


@dataclass(frozen=True, slots=True)
class Assigned:
    """The arm of one request.

    fallback: the control's variant, which answers if this arm fails; None if this is the control.
    epoch: the epoch of the standing under which the unit was assigned.
    """

    experiment: str
    arm: str
    variant: str
    bucket: int
    fallback: str | None
    epoch: str = ""


class ArmTable:
    """The arms and conditions of one experiment, ready for look-ups."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        self.name = config.name
        self._spans = list(config.spans.values())
        self._ends = [end for _, end in self._spans]
        self._where = {key: _accepted(values) for key, values in config.where.items()}

    def concerns(self, attributes: Mapping[str, Attribute]) -> bool:
        """Return whether a request with these attributes meets `where`."""
        return all(
            key in attributes and _typed(attributes[key]) in accepted for key, accepted in self._where.items()
        )

    def arm_of(self, unit: str, standing: Standing) -> Assigned | None:
        """Return the arm that a unit is exposed to; None outside the traffic or if the arm is rolled back."""
        position = bucket(self.config.salt, unit)
        index = bisect_right(self._ends, position)
        arm = self.config.arms[index]
        if arm.name in standing.rolled_back or not is_exposed(position, self._spans[index], standing.traffic):
            return None
        fallback = None if arm.name == self.config.control else self.config.variant_of(self.config.control)
        return Assigned(self.name, arm.name, arm.variant, position, fallback, standing.epoch)


@dataclass(frozen=True)
class Assigner:
    """The experiments of one live config. Immutable, so that a request sees one config from start to end."""

    experiments: tuple[ExperimentConfig, ...] = ()
    holdout: HoldoutConfig | None = None

    @cached_property
    def _tables(self) -> tuple[ArmTable, ...]:
        return tuple(ArmTable(config) for config in self.experiments)

    def assign(
        self, unit: str, attributes: Mapping[str, Attribute], standings: Mapping[str, Standing]
    ) -> Assigned | None:
        """Return the arm of a unit; None if the unit is in no running experiment.

        standings: by experiment; an experiment that is missing does not run.
        """
        if not self._tables or self.holds_out(unit):
            return None
        slot = bucket(LAYER_SALT, unit)
        for table in self._tables:
            start, end = table.config.slots
            if start <= slot < end:
                standing = standings.get(table.name, IDLE)
                if not standing.is_running or not table.concerns(attributes):
                    return None
                return table.arm_of(unit, standing)
        return None

    def shipped(
        self, unit: str | None, attributes: Mapping[str, Attribute], standings: Mapping[str, Standing]
    ) -> str | None:
        """Return the variant of the first shipped experiment that concerns this request, if any."""
        for table in self._tables:
            arm = standings.get(table.name, IDLE).shipped
            if arm is not None and table.concerns(attributes):
                return None if unit is not None and self.holds_out(unit) else table.config.variant_of(arm)
        return None

    def shadowed(
        self, attributes: Mapping[str, Attribute], standings: Mapping[str, Standing]
    ) -> list[ExperimentConfig]:
        """Return the running experiments with a shadow share that concern this request."""
        return [
            table.config
            for table in self._tables
            if table.config.shadow
            and standings.get(table.name, IDLE).is_running
            and table.concerns(attributes)
        ]

    def holds_out(self, unit: str) -> bool:
        """Return whether the unit is in the holdout, which gets no experiment and no shipped variant."""
        holdout = self.holdout
        return holdout is not None and bucket(holdout.salt, unit) < int(holdout.share * BUCKETS)


def _typed(value: Attribute) -> tuple[str, Attribute]:
    """Tag a value with its JSON type: 1, true and "1" are three values; 1 and 1.0 are one."""
    if isinstance(value, bool):
        return "boolean", value
    return ("string" if isinstance(value, str) else "number"), value


def _accepted(values: Sequence[Attribute]) -> frozenset[tuple[str, Attribute]]:
    return frozenset(map(_typed, values))
