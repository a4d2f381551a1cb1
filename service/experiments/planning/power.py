"""How many units an experiment needs, with one look at the end or with looks at any time.

The statistic is taken as a Brownian motion: with N units, the distance from what is to be ruled out, `shift`,
and the standard deviation that the estimate would have after one unit, `tau`, all depends on shift √N / tau.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from service.experiments.analysis.moments import Floats
from service.experiments.analysis.sequences import Boundary

PATHS = 20_000
"""Simulated experiments: the power of a plan is right to within half a point."""

MOST_LOOKS = 200


@dataclass(frozen=True, slots=True)
class Question:
    """What an experiment is to show of one metric, arm against control.

    baseline, sd: of control's units. margin: how much worse is good enough, None: show that there is a
    difference. effect: the true change, arm minus control; both in the metric's unit.
    relative: the margin is declared as a share of control's value, which is then estimated too.
    share: of the two arms' units, those of the arm. correlation: with the covariate (CUPED).
    sign: 1 where more is better.
    """

    baseline: float
    sd: float
    margin: float | None = None
    effect: float = 0.0
    relative: bool = True
    share: float = 0.5
    correlation: float = 0.0
    sign: int = 1

    def __post_init__(self) -> None:
        if self.shift <= 0:
            raise ValueError("an arm that is worse by the margin or more cannot be shown to be good enough")

    @property
    def shift(self) -> float:
        """How far the truth is from what is to be ruled out."""
        return abs(self.effect) if self.margin is None else self.margin + self.sign * self.effect

    @property
    def tau(self) -> float:
        """Standard deviation of what is tested, after one unit of both arms together."""
        weight = 1.0
        if self.relative and self.margin is not None and self.baseline > 0:
            weight = 1 - self.sign * self.margin / self.baseline
        spread = 1 / self.share + weight**2 / (1 - self.share)
        return self.sd * float(np.sqrt((1 - self.correlation**2) * spread))


def fixed_units(question: Question, *, alpha: float, power: float) -> int:
    """Units of both arms for one look at the end, with the 1 − α interval."""
    from scipy.stats import norm

    needed = norm.isf(alpha / 2) + norm.ppf(power)
    return int(np.ceil((needed * question.tau / question.shift) ** 2))


def sequential_units(question: Question, *, alpha: float, power: float, every: int = 100) -> int:
    """Units of both arms for looks after every so many units, with a sequence tuned to this very number."""
    looks, units = 100, 0
    for _ in range(3):  # the number of looks matters little, so this settles at once
        needed = float(np.quantile(_needed(alpha, looks), power))
        units = int(np.ceil((needed * question.tau / question.shift) ** 2))
        looks = _looks(units, every)
    return units


def sequential_power(question: Question, units: int, *, alpha: float, every: int = 100) -> float:
    """The chance to conclude within so many units of both arms, with a sequence tuned to that number."""
    reached = question.shift * float(np.sqrt(units)) / question.tau
    return float((_needed(alpha, _looks(units, every)) <= reached).mean())


def provable_shift(question: Question, units: int, *, alpha: float, power: float, every: int = 100) -> float:
    """The smallest distance from the truth that so many units can rule out."""
    needed = float(np.quantile(_needed(alpha, _looks(units, every)), power))
    return needed * question.tau / float(np.sqrt(units))


def _looks(units: int, every: int) -> int:
    return min(max(units // every, 1), MOST_LOOKS)


@lru_cache(maxsize=32)
def _needed(alpha: float, looks: int) -> Floats:
    """(PATHS,): the smallest shift √N / tau with which each simulated experiment concludes.

    At a share u of the units the estimate is clear of the interval's end when d·u + W(u) > multiplier(u)·√u,
    with a Brownian motion W; the smallest such d over the looks is what the experiment needs.
    """
    rng = np.random.default_rng(7)
    share = np.arange(1, looks + 1) / looks
    edge = Boundary(alpha, 1.0).multiplier(share) * np.sqrt(share)
    motion = np.zeros(PATHS)
    needed = np.full(PATHS, np.inf)
    for u, height in zip(share, edge, strict=True):
        motion += rng.normal(0, np.sqrt(1 / looks), PATHS)
        np.minimum(needed, (height - motion) / u, out=needed)
    return needed
