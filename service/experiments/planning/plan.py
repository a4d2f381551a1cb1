"""Plans an experiment: the units and days that it needs, over all its arms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from service.experiments.planning.power import Question, fixed_units, provable_shift, sequential_units

DAYS = (7, 14, 28, 56)


@dataclass(frozen=True, slots=True)
class ArmWeights:
    """The arms' weights as in the config, control's first. The plan is for the arm with the fewest units."""

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.weights) < 2 or not all(math.isfinite(w) and w > 0 for w in self.weights):
            raise ValueError("two or more numbers above 0, the control's first, such as 50,50")

    @property
    def share(self) -> float:
        """The smallest arm's share of its own and control's units."""
        return min(self.weights[1:]) / self.pair

    @property
    def pair(self) -> float:
        """The weight of the smallest arm and control together."""
        return min(self.weights[1:]) + self.weights[0]

    @property
    def pair_share(self) -> float:
        """The share of all units that the smallest arm and control get."""
        return self.pair / sum(self.weights)

    def level(self, alpha: float) -> float:
        """Return the α of one arm against control, so that the chance of any error is α (Bonferroni)."""
        return alpha / (len(self.weights) - 1)


@dataclass(frozen=True, slots=True)
class Need:
    """Units of all arms together, and days if the traffic is known."""

    units: int
    days: int | None


@dataclass(frozen=True, slots=True)
class Provable:
    """The smallest margin or difference that looking at any time can show after so many days."""

    days: int
    shift: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The needs of an experiment.

    one_look: with one look at the end. any_time: with the confidence sequence, tuned to these units.
    """

    one_look: Need
    any_time: Need
    provable: Sequence[Provable]


def make_plan(
    question: Question,
    arms: ArmWeights,
    *,
    alpha: float,
    power: float,
    units_per_day: float | None = None,
    every: int = 100,
) -> Plan:
    """Return the plan for a question.

    units_per_day: new units in the experiment, over all arms. every: units between two looks.
    """
    level = arms.level(alpha)

    def need(of_pair: int) -> Need:
        units = math.ceil(of_pair / arms.pair_share)
        return Need(units, None if units_per_day is None else math.ceil(units / units_per_day))

    provable = []
    if units_per_day is not None:
        for days in DAYS:
            units = max(int(days * units_per_day * arms.pair_share), 1)
            shift = provable_shift(question, units, alpha=level, power=power, every=every)
            provable.append(
                Provable(days, shift - question.sign * question.effect * (question.margin is not None))
            )
    return Plan(
        one_look=need(fixed_units(question, alpha=level, power=power)),
        any_time=need(sequential_units(question, alpha=level, power=power, every=every)),
        provable=provable,
    )
