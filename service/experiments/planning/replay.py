"""Replays an experiment on labelled data: two variants rank the titles, and simulated users click."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from service.experiments.analysis.moments import Floats
from service.experiments.analysis.paired import paired
from service.experiments.planning.clicks import ClickMeasure, ClickModel, Rankings, Visits, rank
from service.experiments.planning.power import Question, sequential_power
from service.experiments.planning.simulation import Conclusions, Design, Units, simulate

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LabelledPairs:
    """The pairs of a file. query_of (from 0) and grades: (pairs,) int64. levels: the number of grades."""

    query_of: Integers
    grades: Integers
    levels: int

    @classmethod
    def of(cls, queries: list[str], grades: list[int], levels: int) -> LabelledPairs:
        """Number the queries in their order."""
        numbers: dict[str, int] = {}
        return cls(
            np.array([numbers.setdefault(query, len(numbers)) for query in queries], np.int64),
            np.array(grades, np.int64),
            levels,
        )


@dataclass(frozen=True)
class SimulatedUsers:
    """Users who ask one of the queries, each equally likely, and see the ranking of an arm.

    past: a user's behaviour under control before the experiment, on the same query, is the covariate.
    """

    control: Rankings
    arm: Rankings
    measure: ClickMeasure
    past: bool = False

    @classmethod
    def of(
        cls,
        data: LabelledPairs,
        scores: tuple[Floats, Floats],
        *,
        model: ClickModel,
        measure: ClickMeasure,
        past: bool = False,
    ) -> SimulatedUsers:
        """Return users of the two rankings. scores: control's and the arm's scores of the pairs."""
        control, arm = (
            Rankings.of(rank(data.query_of, data.grades, of_arm), levels=data.levels, model=model)
            for of_arm in scores
        )
        return cls(control, arm, measure, past)

    @property
    def queries(self) -> int:
        """The number of queries."""
        return len(self.control.click)

    @cached_property
    def _tables(self) -> tuple[Floats, Floats, Floats]:
        """The measure's values, and their probabilities by query under control and under the arm."""
        values, control = self.control.distribution(self.measure)
        return values, control, self.arm.distribution(self.measure)[1]

    @cached_property
    def _visits(self) -> Visits:
        values, control, arm = self._tables
        return Visits(values, np.concatenate([control, arm]))

    @property
    def means(self) -> tuple[float, float]:
        """The exact means of the measure under control and under the arm."""
        values, control, arm = self._tables
        return float((control @ values).mean()), float((arm @ values).mean())

    def without_effect(self) -> SimulatedUsers:
        """Return users who see control's ranking in both arms: an A/A test."""
        return SimulatedUsers(self.control, self.control, self.measure, self.past)

    def draw(self, treated: NDArray[np.bool_], rng: np.random.Generator) -> Units:
        """Draw one user for each element of `treated`."""
        query = rng.integers(0, self.queries, treated.shape)
        value = self._visits.draw(query + self.queries * treated, rng)
        return Units(value, covariate=self._visits.draw(query, rng) if self.past else None)

    @property
    def spread(self) -> tuple[float, float]:
        """Standard deviation of the measure under control, and its correlation with the past (0 without)."""
        values, control, _ = self._tables
        by_query = control @ values
        variance = float((control @ values**2).mean() - by_query.mean() ** 2)
        if not self.past or variance == 0:
            return float(np.sqrt(variance)), 0.0
        return float(np.sqrt(variance)), float(by_query.var() / variance)


@dataclass(frozen=True, slots=True)
class ShadowSummary:
    """The comparison of both arms on every query, without any user: means over queries."""

    mean_delta: float
    abs_delta_p99: float
    rank_correlation: float | None
    top10_overlap: float | None
    ndcg_loss: float | None


def compare_scores(data: LabelledPairs, scores: tuple[Floats, Floats]) -> ShadowSummary:
    """Compare the scores of both arms. scores: control's and the arm's scores of the pairs, in [0, 1]."""
    order = np.argsort(data.query_of, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(data.query_of[order])) + 1)
    differences = [paired(scores[0][g], scores[1][g], data.grades[g].tolist()) for g in groups]
    deltas = scores[1] - scores[0]

    def mean(values: list[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        return float(np.mean(present)) if present else None

    losses = [
        None if one.ndcg_control is None or one.ndcg_arm is None else one.ndcg_control - one.ndcg_arm
        for one in differences
    ]
    return ShadowSummary(
        mean_delta=float(deltas.mean()),
        abs_delta_p99=float(np.quantile(np.abs(deltas), 0.99)),
        rank_correlation=mean([one.rank_correlation for one in differences]),
        top10_overlap=mean([one.top10_overlap for one in differences]),
        ndcg_loss=mean(losses),
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """The shares of many simulated experiments that ever drew each conclusion, at any look.

    median_units: median units at which experiments found the arm good (or, if none did, bad); else None.
    """

    experiments: int
    good: float
    bad: float
    undecided: float
    different: float
    missed: float
    mismatches: int
    median_units: int | None


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of many simulated experiments.

    planned_power: the calculated power for the true effect; None if the arm is not good in truth.
    """

    control: float
    arm: float
    sd: float
    correlation: float
    design: Design
    planned_power: float | None
    effect: Rates
    no_effect: Rates
    example: Conclusions


def replay(
    users: SimulatedUsers,
    design: Design,
    *,
    experiments: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Replay:
    """Run the experiment `experiments` times as it is, and as often without an effect (A/A)."""
    control, arm = users.means
    sd, correlation = users.spread
    with_effect = simulate(
        design, users.draw, experiments=experiments, truth=arm - control, seed=seed, progress=progress
    )
    without_effect = simulate(
        design,
        users.without_effect().draw,
        experiments=experiments,
        truth=0.0,
        seed=seed + 1,
        progress=lambda done: progress(experiments + done),
    )
    return Replay(
        control=control,
        arm=arm,
        sd=sd,
        correlation=correlation,
        design=design,
        planned_power=_planned(design, control, arm, sd, correlation),
        effect=_rates(with_effect),
        no_effect=_rates(without_effect),
        example=with_effect,
    )


def _planned(design: Design, control: float, arm: float, sd: float, correlation: float) -> float | None:
    margin = None
    if design.margin is not None:
        margin = design.margin * (control if design.relative else 1.0)
    try:
        question = Question(
            baseline=control,
            sd=sd,
            margin=margin,
            effect=arm - control,
            relative=design.relative,
            share=design.share,
            correlation=correlation,
            sign=design.sign,
        )
    except ValueError:
        return None
    return sequential_power(question, design.units, alpha=design.alpha, every=design.every)


def _rates(conclusions: Conclusions) -> Rates:
    good, bad = conclusions.good > 0, conclusions.bad > 0
    ended = conclusions.good[good] if good.any() else conclusions.bad[bad]
    return Rates(
        experiments=len(conclusions.good),
        good=float(good.mean()),
        bad=float(bad.mean()),
        undecided=float((~good & ~bad).mean()),
        different=float((conclusions.different > 0).mean()),
        missed=float((conclusions.missed > 0).mean()),
        mismatches=int((conclusions.mismatch > 0).sum()),
        median_units=int(np.median(ended)) if len(ended) else None,
    )
