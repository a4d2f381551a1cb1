"""Plans an experiment: the units and days that it needs, with one look at the end or with looks at any time.

The statistic is modelled as a Brownian motion. `shift` is the distance between the truth and the hypothesis
to rule out; `tau` is the standard deviation of the estimate after one tested unit. With N tested units,
everything depends on shift √N / tau.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headroom.service.experiments.estimates import ALPHA, MIN_UNITS, Boundary, Floats

LOOKS = 25
"""Looks of a simulated experiment. Who looks more often needs up to 5 % fewer units."""

MIN_SHIFT = 1e-6
"""The smallest distance to rule out, in standard deviations; some 10^13 units can show it."""

PATHS = 20_000
"""Number of simulated experiments, enough for the power to be right to half a percentage point."""


@dataclass(frozen=True, slots=True)
class Question:
    """The question that an A/B test asks about one metric of each arm against control.

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
    def treatments(self) -> int:
        """How many arms are compared with control."""
        return len(self.weights) - 1

    @property
    def share(self) -> float:
        """The share of all units that is tested: those of the smallest arm and of control."""
        return (min(self.weights[1:]) + self.weights[0]) / sum(self.weights)

    @property
    def shift(self) -> float:
        """The distance between the truth and the hypothesis to rule out."""
        return abs(self.effect) if self.margin is None else self.margin + self.sign * self.effect

    @property
    def tau(self) -> float:
        """Standard deviation of arm − weight · control after one unit of both together.

        It goes by the variance of both together if this is larger, as the report does (`contrast`).
        """
        share = min(self.weights[1:]) / (min(self.weights[1:]) + self.weights[0])
        weight = 1.0 if self.margin is None else 1 - self.sign * self.margin / self.baseline
        of_control = self.sd**2
        of_arm = of_control if self.arm_sd is None else self.arm_sd**2
        of_both = share * of_arm + (1 - share) * of_control
        apart = of_arm / share + weight**2 * of_control / (1 - share)
        together = of_both / share + weight**2 * of_both / (1 - share)
        return math.sqrt(max(apart, together))


@dataclass(frozen=True, slots=True)
class PreferenceQuestion:
    """The question that an interleaving experiment asks. Those who click a title of one arm are tested.

    The value of such a unit is between −1 and 1, so its variance is at most 1 − preference². It is that if
    each unit has one such click, and less if some have more.

    clicked: share of the units that click some title, in (0, 1). deciding: share of the clicks that fall on a
    title of one arm. margin: how far below 0 a preference is good enough, in (0, 1]; None asks whether there
    is a preference. effect: the true preference, in (−1, 1).
    Raises ValueError if no number of units answers it.
    """

    clicked: float
    deciding: float
    margin: float | None = None
    effect: float = 0.0

    def __post_init__(self) -> None:
        if not self.deciding > 0:
            raise ValueError("no list differs, so no click can say anything: the arms rank alike")
        self.ab_question()  # raises ValueError, too

    @property
    def treatments(self) -> int:
        """How many arms are compared with control."""
        return 1

    @property
    def share(self) -> float:
        """The share of the units that is tested."""
        return self.clicked * self.deciding

    @property
    def shift(self) -> float:
        """The distance between the true preference and the one to rule out."""
        return abs(self.effect) if self.margin is None else self.margin + self.effect

    @property
    def tau(self) -> float:
        """The standard deviation of the value of a unit, at most."""
        return math.sqrt(1 - self.effect**2)

    def ab_question(self) -> Question:
        """Return the question of an A/B test on the share of units that click.

        A preference of −m means that, of the units that click a title of one arm, a share of m more clicks
        control's. In the A/B test that is the loss, if each of them would click nothing in the treatment's
        own list. Most would click another title, so an A/B test needs even more units.
        """
        changed = min(self.clicked + self.effect * self.share, 1.0)  # no more than all units click
        return Question(
            baseline=self.clicked,
            sd=math.sqrt(self.clicked * (1 - self.clicked)),
            margin=None if self.margin is None else self.margin * self.share,
            effect=self.effect * self.share,
            arm_sd=math.sqrt(changed * (1 - changed)),
        )


@dataclass(frozen=True, slots=True)
class SampleSize:
    """Exposed units of all arms together, and days if the traffic is known."""

    units: int
    days: int | None


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """How many units and days an experiment needs.

    one_look: with one look at the end. any_time: with the confidence sequence, tuned to these units.
    tested_units: those of `any_time` that are tested.
    """

    one_look: SampleSize
    any_time: SampleSize
    tested_units: int


def make_plan(
    question: Question | PreferenceQuestion, *, power: float, units_per_day: float | None = None
) -> ExperimentPlan:
    """Return the plan for a question.

    power: the chance of a conclusion if the effect is as given. units_per_day: new units in the experiment,
        over all arms.
    """
    from scipy.stats import norm

    def sample(tested: float) -> SampleSize:
        units = math.ceil(tested / question.share)
        return SampleSize(units, None if units_per_day is None else math.ceil(units / units_per_day))

    level = ALPHA / question.treatments  # Bonferroni, as in the report
    spread = question.tau / question.shift
    once = (float(norm.isf(level / 2)) + float(norm.ppf(power))) * spread
    any_time = float(np.quantile(needed(level), power)) * spread
    tested = max(MIN_UNITS, math.ceil(any_time**2))
    return ExperimentPlan(sample(once**2), sample(tested), tested)


@lru_cache(maxsize=32)
def needed(alpha: float) -> Floats:
    """Return the smallest shift √N / tau with which each simulated experiment concludes, (PATHS,).

    At a share u of the units the estimate is clear of the interval's end when d·u + W(u) is above
    multiplier(u)·√u, with a Brownian motion W. The experiment needs the smallest such d.
    """
    rng = np.random.default_rng(7)
    share = np.arange(1, LOOKS + 1) / LOOKS
    edge = Boundary(alpha, 1.0).multiplier(share) * np.sqrt(share)
    motion = np.zeros(PATHS)
    smallest = np.full(PATHS, np.inf)
    for u, height in zip(share, edge, strict=True):
        motion += rng.normal(0, math.sqrt(1 / LOOKS), PATHS)
        np.minimum(smallest, (height - motion) / u, out=smallest)
    return smallest
