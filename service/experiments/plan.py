"""Plans an experiment: the units and days that it needs, with one look at the end or with looks at any time.

The statistic is modelled as a Brownian motion. `shift` is the distance between the truth and the hypothesis
to rule out; `tau` is the standard deviation of the estimate after one unit. With N units, everything depends
on shift √N / tau.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headroom.service.experiments.estimates import Boundary, Floats

LOOK_EVERY = 100
"""Units between two looks."""

MAX_LOOKS = 200
"""Looks of a simulated experiment, at most. More hardly change what it needs."""

MIN_SHIFT = 1e-6
"""The smallest distance to rule out, in standard deviations; some 10^13 units can show it."""

PATHS = 20_000
"""Number of simulated experiments. It makes the power of a plan right to half a percentage point."""


@dataclass(frozen=True, slots=True)
class Question:
    """The question that an experiment asks about one metric of each arm against control.

    baseline, sd: mean and standard deviation of control's units. arm_sd: that of the arm's if the effect is
    as given; None: as control's. margin: how much worse is good enough; None asks whether there is a
    difference. effect: the true change, arm minus control. Margin and effect are in the metric's unit; the
    margin is a share of control's value, which is estimated too.
    weights: those of the arms, control's first; the plan is for the arm with the fewest units.
    sign: 1 if more is better, else -1.
    """

    baseline: float
    sd: float
    margin: float | None = None
    effect: float = 0.0
    weights: tuple[float, ...] = (1.0, 1.0)
    sign: int = 1
    arm_sd: float | None = None

    def __post_init__(self) -> None:
        if len(self.weights) < 2 or not all(0 < weight < math.inf for weight in self.weights):
            raise ValueError("weights: give two or more numbers above 0, the control's first: 50,50")
        if self.shift < MIN_SHIFT * self.tau:
            raise ValueError("no number of units shows this: margin and effect leave nothing to rule out")

    @property
    def share(self) -> float:
        """The share of all units that the smallest arm and control get."""
        return (min(self.weights[1:]) + self.weights[0]) / sum(self.weights)

    @property
    def shift(self) -> float:
        """The distance between the truth and the hypothesis to rule out."""
        return abs(self.effect) if self.margin is None else self.margin + self.sign * self.effect

    @property
    def tau(self) -> float:
        """Standard deviation of the tested estimate after one unit of both arms together."""
        return math.sqrt(self._variance(*self._variances))

    @property
    def caution(self) -> float:
        """The standard deviation that the report takes, in units of `tau`.

        It is above 1 if all units together vary more than the two arms do (`estimates.contrast`).
        """
        if self.arm_sd is None:
            return 1.0  # but for the effect itself, which is small next to the standard deviation of a mean
        share = self._arms_share
        of_arm, of_control = self._variances
        pooled = share * of_arm + (1 - share) * of_control + share * (1 - share) * self.effect**2
        if pooled / share + pooled / (1 - share) <= of_arm / share + of_control / (1 - share):
            return 1.0
        return math.sqrt(self._variance(pooled, pooled)) / self.tau

    @property
    def _arms_share(self) -> float:
        """The smallest arm's share of its own and control's units."""
        return min(self.weights[1:]) / (min(self.weights[1:]) + self.weights[0])

    @property
    def _variances(self) -> tuple[float, float]:
        """The variances of the arm's and of control's units."""
        return (self.arm_sd or self.sd) ** 2, self.sd**2

    def _variance(self, of_arm: float, of_control: float) -> float:
        """Return the variance of arm − weight · control after one unit of both together."""
        weight = 1.0
        if self.margin is not None:
            weight = 1 - self.sign * self.margin / self.baseline
        return of_arm / self._arms_share + weight**2 * of_control / (1 - self._arms_share)


@dataclass(frozen=True, slots=True)
class SampleSize:
    """Units of all arms together, and days if the traffic is known."""

    units: int
    days: int | None


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """How many units and days an experiment needs.

    one_look: with one look at the end. any_time: with the confidence sequence, tuned to these units.
    """

    one_look: SampleSize
    any_time: SampleSize


def make_plan(
    question: Question, *, alpha: float, power: float, units_per_day: float | None = None
) -> ExperimentPlan:
    """Return the plan for a question.

    alpha: the chance that any arm's interval is ever wrong. power: the chance of a conclusion if the effect
    is as given. units_per_day: new units in the experiment, over all arms.
    """
    level = alpha / (len(question.weights) - 1)  # Bonferroni, as in the report
    spread = question.tau / question.shift
    once, any_time = units_needed(spread, question.share, level, power, caution=question.caution)
    return ExperimentPlan(
        sample_size(math.ceil(once) / question.share, units_per_day),
        sample_size(any_time / question.share, units_per_day),
    )


def units_needed(
    spread: float, share: float, level: float, power: float, *, caution: float = 1.0, min_units: int = 1
) -> tuple[float, int]:
    """Return the units of a sample that answer its question: with one look, and with looks at any time.

    spread: tau / shift. share: of all units, that of the sample. level: the chance that the interval is ever
    wrong. caution: by what factor the report widens intervals. min_units: those with which the report gives
    an interval.
    """
    from scipy.stats import norm

    once = float(norm.isf(level / 2)) * caution + float(norm.ppf(power))
    any_time = 100 * LOOK_EVERY
    for _ in range(3):  # the number of looks matters little, so this settles at once
        looks = min(max(int(any_time / share) // LOOK_EVERY, 1), MAX_LOOKS)
        shift = float(np.quantile(needed(level, caution, looks), power))
        any_time = max(min_units, math.ceil((shift * spread) ** 2))
    return (once * spread) ** 2, any_time


def sample_size(units: float, units_per_day: float | None) -> SampleSize:
    """Return whole units, and the days that they take."""
    whole = math.ceil(units)
    return SampleSize(whole, None if units_per_day is None else math.ceil(whole / units_per_day))


@lru_cache(maxsize=32)
def needed(alpha: float, caution: float, looks: int) -> Floats:
    """Return the smallest shift √N / tau with which each simulated experiment concludes, (PATHS,).

    At a share u of the units the estimate is clear of the interval's end when d·u + W(u) is above
    caution·multiplier(u)·√u, with a Brownian motion W. The experiment needs the smallest such d.
    """
    rng = np.random.default_rng(7)
    share = np.arange(1, looks + 1) / looks
    edge = caution * Boundary(alpha, 1.0).multiplier(share) * np.sqrt(share)
    motion = np.zeros(PATHS)
    smallest = np.full(PATHS, np.inf)
    for u, height in zip(share, edge, strict=True):
        motion += rng.normal(0, math.sqrt(1 / looks), PATHS)
        np.minimum(smallest, (height - motion) / u, out=smallest)
    return smallest
