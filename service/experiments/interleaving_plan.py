"""Plans an interleaving experiment: the units that it needs, beside those of an A/B test of the same.

The sample is the units that click a title of one arm. The value of such a unit is between −1 and 1, so its
variance is at most 1 − preference². It is that if each unit has one such click, and less if some have more.

An A/B test asks whether fewer units click. A preference of −m means that, of the units that click a title of
one arm, a share of m more clicks control's. In the A/B test that is the loss, if each of them would click
nothing in the treatment's own list. Most would click another title, so an A/B test needs even more units.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headroom.service.experiments.estimates import MIN_UNITS, Floats
from headroom.service.experiments.interleaving import SHARED, coins, draw, own_order
from headroom.service.experiments.plan import (
    ExperimentPlan,
    Question,
    SampleSize,
    make_plan,
    sample_size,
    units_needed,
)

DRAWS = 16
"""Lists drawn of each query, because the coins move titles up and down."""


@dataclass(frozen=True, slots=True)
class Lists:
    """How much of what users do says something about the arms.

    differing: share of the lists in which some title belongs to one arm.
    deciding: share of the clicks, over all lists, that fall on such a title.
    """

    differing: float
    deciding: float


ASSUMED = Lists(differing=0.87, deciding=0.36)
"""What is assumed if nothing was measured: the shipped model's `pruned20` on data/sample/test.jsonl.gz, with
earlier weights. With the present ones the shares are 0.87 and 0.40."""

DECIDING_IN_DIFFERING = 0.4
"""Share of the clicks on lists that differ which fall on a title of one arm, if it was not measured."""


@dataclass(frozen=True, slots=True)
class PreferenceQuestion:
    """The question that an interleaving experiment asks.

    margin: how far below 0 a preference is good enough, in (0, 1]; None asks whether there is a preference.
    clicked: share of the units that click some title, in (0, 1). effect: the true preference, in (−1, 1).
    Raises ValueError if no number of units answers it.
    """

    clicked: float
    lists: Lists
    margin: float | None = None
    effect: float = 0.0

    def __post_init__(self) -> None:
        if not self.lists.deciding > 0:
            raise ValueError("no list differs, so no click can say anything: the arms rank alike")
        self.ab_question()  # raises ValueError, too

    @property
    def shift(self) -> float:
        """The distance between the true preference and the one to rule out."""
        return abs(self.effect) if self.margin is None else self.margin + self.effect

    @property
    def sd(self) -> float:
        """The standard deviation of the value of a unit, at most."""
        return math.sqrt(1 - self.effect**2)

    @property
    def share(self) -> float:
        """The share of the units that click a title of one arm."""
        return self.clicked * self.lists.deciding

    def ab_question(self) -> Question:
        """Return the question of the A/B test on the share of units that click."""
        changed = min(self.clicked + self.effect * self.share, 1.0)  # no more than all units click
        return Question(
            baseline=self.clicked,
            sd=math.sqrt(self.clicked * (1 - self.clicked)),
            margin=None if self.margin is None else self.margin * self.share,
            effect=self.effect * self.share,
            arm_sd=math.sqrt(changed * (1 - changed)),
        )


@dataclass(frozen=True, slots=True)
class InterleavingPlan:
    """The units and days that an experiment needs, exposed ones in `one_look` and `any_time`.

    deciding_units: those of `any_time` that click a title of one arm: the config's `planned_units`.
    ab: the plan of the A/B test.
    """

    one_look: SampleSize
    any_time: SampleSize
    deciding_units: int
    ab: ExperimentPlan


def make_interleaving_plan(
    question: PreferenceQuestion, *, alpha: float, power: float, units_per_day: float | None = None
) -> InterleavingPlan:
    """Return the plan for a question.

    alpha: the chance that the interval is ever wrong. power: the chance of a conclusion if the preference is
    as given. units_per_day: new units in the experiment.
    """
    spread = question.sd / question.shift
    once, deciding_units = units_needed(spread, question.share, alpha, power, min_units=MIN_UNITS)
    ab = make_plan(question.ab_question(), alpha=alpha, power=power, units_per_day=units_per_day)
    return InterleavingPlan(
        sample_size(once / question.share, units_per_day),
        sample_size(deciding_units / question.share, units_per_day),
        deciding_units,
        ab,
    )


def measure_lists(scores: Sequence[tuple[Floats, Floats]], shown: int | None = None) -> Lists:
    """Return how much the lists drawn from two arms' scores differ, over queries.

    scores: of each query, control's and the treatment's raw scores of its titles, (titles,) each.
    shown: how many titles a list shows; None: all.
    Clicks fall off as 1/rank: a user sees the title at rank k with that probability (the position-based model
    with η = 1; Joachims, Swaminathan & Schnabel 2017, https://arxiv.org/abs/1608.04468).
    Raises ValueError without a query.
    """
    if not scores:
        raise ValueError("no query to measure lists of")
    differing = 0
    deciding = 0.0
    for number, (control, treatment) in enumerate(scores):
        for unit in range(DRAWS):
            coin = coins("plan", str(unit), str(number))
            drawn = draw(own_order(control.tolist()), own_order(treatment.tolist()), coin)
            is_decided = np.array([team != SHARED for team in drawn.teams[:shown]])
            seen = 1 / np.arange(1, len(is_decided) + 1)
            differing += bool(is_decided.any())
            deciding += float(seen[is_decided].sum() / seen.sum())
    lists = DRAWS * len(scores)
    return Lists(differing / lists, deciding / lists)
