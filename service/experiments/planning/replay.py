"""An experiment on labelled data: two variants rank each query's titles, and simulated users click."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from service.experiments.analysis.moments import Floats
from service.experiments.analysis.paired import paired
from service.experiments.planning.clicks import Measure, Model, Rankings, Visits, rank
from service.experiments.planning.power import Question, sequential_power
from service.experiments.planning.simulation import Design, Outcomes, Units, simulate

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Pairs of a file: query_of (from 0) and grades, (pairs,) int64; levels: how many grades there are."""

    query_of: Places
    grades: Places
    levels: int

    @classmethod
    def of(cls, queries: list[str], grades: list[int], levels: int) -> Labelled:
        numbers: dict[str, int] = {}
        return cls(
            np.array([numbers.setdefault(query, len(numbers)) for query in queries], np.int64),
            np.array(grades, np.int64),
            levels,
        )


@dataclass(frozen=True)
class World:
    """Where a user asks one of the queries, each as likely, and sees the ranking of an arm.

    `past`: a user's behaviour under control before the experiment, on the same query, serves as covariate.
    """

    control: Rankings
    arm: Rankings
    measure: Measure
    past: bool = False

    @classmethod
    def of(
        cls,
        data: Labelled,
        scores: tuple[Floats, Floats],
        *,
        model: Model,
        measure: Measure,
        past: bool = False,
    ) -> World:
        """scores: control's and the arm's, of the pairs."""
        control, arm = (
            Rankings.of(rank(data.query_of, data.grades, of_arm), levels=data.levels, model=model)
            for of_arm in scores
        )
        return cls(control, arm, measure, past)

    @property
    def queries(self) -> int:
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
        """Exactly what the measure is under control and under the arm."""
        values, control, arm = self._tables
        return float((control @ values).mean()), float((arm @ values).mean())

    def without_effect(self) -> World:
        """The same with control's ranking in both arms: an A/A test."""
        return World(self.control, self.control, self.measure, self.past)

    def draw(self, treated: NDArray[np.bool_], rng: np.random.Generator) -> Units:
        """One user per place."""
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
class Shadow:
    """What scoring every query under both arms shows without any user: means over queries."""

    mean_delta: float
    abs_delta_p99: float
    rank_correlation: float | None
    top10_overlap: float | None
    ndcg_loss: float | None


def shadow(data: Labelled, scores: tuple[Floats, Floats]) -> Shadow:
    """scores: control's and the arm's, in [0, 1], of the pairs."""
    order = np.argsort(data.query_of, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(data.query_of[order])) + 1)
    found = [paired(scores[0][g], scores[1][g], data.grades[g].tolist()) for g in groups]
    deltas = scores[1] - scores[0]

    def mean(values: list[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        return float(np.mean(present)) if present else None

    losses = [
        None if one.ndcg_control is None or one.ndcg_arm is None else one.ndcg_control - one.ndcg_arm
        for one in found
    ]
    return Shadow(
        mean_delta=float(deltas.mean()),
        abs_delta_p99=float(np.quantile(np.abs(deltas), 0.99)),
        rank_correlation=mean([one.rank_correlation for one in found]),
        top10_overlap=mean([one.top10_overlap for one in found]),
        ndcg_loss=mean(losses),
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """Of many simulated experiments: shares of those that ever concluded so, at any look.

    median_units: at which those that found the arm good (or else bad) did so; None where none did.
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
    """planned_power: what the power calculation says for the true effect; None: good is not the truth."""

    control: float
    arm: float
    sd: float
    correlation: float
    design: Design
    planned_power: float | None
    effect: Rates
    no_effect: Rates
    example: Outcomes


def replay(
    world: World,
    design: Design,
    *,
    experiments: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Replay:
    """Runs the experiment so many times as it is, and as often again without an effect (A/A)."""
    control, arm = world.means
    sd, correlation = world.spread
    found = simulate(
        design, world.draw, experiments=experiments, truth=arm - control, seed=seed, progress=progress
    )
    alike = simulate(
        design,
        world.without_effect().draw,
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
        effect=_rates(found),
        no_effect=_rates(alike),
        example=found,
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


def _rates(found: Outcomes) -> Rates:
    good, bad = found.good > 0, found.bad > 0
    ended = found.good[good] if good.any() else found.bad[bad]
    return Rates(
        experiments=len(found.good),
        good=float(good.mean()),
        bad=float(bad.mean()),
        undecided=float((~good & ~bad).mean()),
        different=float((found.different > 0).mean()),
        missed=float((found.missed > 0).mean()),
        mismatches=int((found.mismatch > 0).sum()),
        median_units=int(np.median(ended)) if len(ended) else None,
    )
