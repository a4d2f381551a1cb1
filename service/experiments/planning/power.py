"""The number of units that an experiment needs, with one look at the end or with looks at any time.

The statistic is modelled as a Brownian motion. `shift` is the distance between the truth and the hypothesis
to rule out; `tau` is the standard deviation of the estimate after one unit. With N units, everything depends
on shift √N / tau.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from service.experiments.analysis.moments import Floats
from service.experiments.analysis.sequences import Boundary

PATHS = 20_000
"""Number of simulated experiments. It makes the power of a plan right to half a percentage point."""

MAX_LOOKS = 200


@dataclass(frozen=True, slots=True)
class Question:
    """The question of an experiment about one metric, arm against control.

    baseline, sd: mean and standard deviation of control's units. arm_sd: that of the arm's if the effect is
    as given; None: as control's. margin: how much worse is good enough; None
    asks whether there is a difference. effect: the true change, arm minus control. Margin and effect are in
    the metric's unit.
    relative: the margin is declared as a share of control's value, which is then estimated too.
    share: the arm's share of the units of both arms. correlation: that of the metric with its covariate
    (CUPED). sign: 1 if more is better, else -1.
    """

    baseline: float
    sd: float
    margin: float | None = None
    effect: float = 0.0
    relative: bool = True
    share: float = 0.5
    correlation: float = 0.0
    sign: int = 1
    arm_sd: float | None = None

    def __post_init__(self) -> None:
        if self.shift <= 0:
            raise ValueError("an arm that is worse by the margin or more cannot be shown to be good enough")

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

        It is above 1 if all units together vary more than the two arms do (`sequences.contrast`).
        """
        if self.arm_sd is None:
            return 1.0  # but for the effect itself, which is small beside the standard deviation of a mean
        of_arm, of_control = self._variances
        between = self.share * (1 - self.share) * self.effect**2
        pooled = self.share * of_arm + (1 - self.share) * of_control + between
        if pooled / self.share + pooled / (1 - self.share) <= of_arm / self.share + of_control / (
            1 - self.share
        ):
            return 1.0
        return math.sqrt(self._variance(pooled, pooled)) / self.tau

    @property
    def _variances(self) -> tuple[float, float]:
        """The variances of the arm's and of control's units, less what the covariate explains."""
        unexplained = 1 - self.correlation**2
        return unexplained * (self.arm_sd or self.sd) ** 2, unexplained * self.sd**2

    def _variance(self, of_arm: float, of_control: float) -> float:
        """Return the variance of arm − weight · control after one unit of both together."""
        weight = 1.0
        if self.relative and self.margin is not None and self.baseline > 0:
            weight = 1 - self.sign * self.margin / self.baseline
        return of_arm / self.share + weight**2 * of_control / (1 - self.share)


def fixed_units(question: Question, *, alpha: float, power: float) -> int:
    """Return the units of both arms for one look at the end, with the 1 − α interval."""
    from scipy.stats import norm

    needed = norm.isf(alpha / 2) * question.caution + norm.ppf(power)
    return int(np.ceil((needed * question.tau / question.shift) ** 2))


def sequential_units(question: Question, *, alpha: float, power: float, every: int = 100) -> int:
    """Return the units of both arms for a look every `every` units, with a sequence tuned to the result."""
    looks, units = 100, 0
    for _ in range(3):  # the number of looks matters little, so this settles at once
        needed = float(np.quantile(_needed(alpha, looks, question.caution), power))
        units = int(np.ceil((needed * question.tau / question.shift) ** 2))
        looks = _looks(units, every)
    return units


def sequential_power(question: Question, units: int, *, alpha: float, every: int = 100) -> float:
    """Return the chance to conclude within so many units of both arms, with a sequence tuned to them."""
    reached = question.shift * float(np.sqrt(units)) / question.tau
    return float((_needed(alpha, _looks(units, every), question.caution) <= reached).mean())


def provable_shift(question: Question, units: int, *, alpha: float, power: float, every: int = 100) -> float:
    """Return the smallest distance from the truth that so many units can rule out."""
    needed = float(np.quantile(_needed(alpha, _looks(units, every), question.caution), power))
    return needed * question.tau / float(np.sqrt(units))


def _looks(units: int, every: int) -> int:
    return min(max(units // every, 1), MAX_LOOKS)


@lru_cache(maxsize=32)
def _needed(alpha: float, looks: int, caution: float) -> Floats:
    """Return the smallest shift √N / tau with which each simulated experiment concludes, (PATHS,).

    At a share u of the units the estimate is clear of the interval's end when d·u + W(u) is above
    caution·multiplier(u)·√u, with a Brownian motion W. The experiment needs the smallest such d.
    """
    rng = np.random.default_rng(7)
    share = np.arange(1, looks + 1) / looks
    edge = caution * Boundary(alpha, 1.0).multiplier(share) * np.sqrt(share)
    motion = np.zeros(PATHS)
    needed = np.full(PATHS, np.inf)
    for u, height in zip(share, edge, strict=True):
        motion += rng.normal(0, np.sqrt(1 / looks), PATHS)
        np.minimum(needed, (height - motion) / u, out=needed)
    return needed
