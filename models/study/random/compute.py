"""Quality with more and more heads off at random, over all layers and over each half, and the tests of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.masks.head_mask import HeadMask
from models.quality.bootstrap import Estimate, Floats
from models.study.random.means import MeanOfMasks
from models.study.statistics import METRICS, Resamples, equivalence_p, holm
from models.study.study import Study
from models.study.wording import layer_range

AT = 0.2
"""The fraction that the source study found removable at no loss."""
RESAMPLES = 1000
"""Enough for bands; each resample needs the draws of all masks of a fraction."""


@dataclass(frozen=True)
class Point:
    """The mean over the random masks of one fraction: the change by metric, absolute and relative."""

    fraction: float
    delta: dict[str, Estimate]
    relative: dict[str, Estimate]


@dataclass(frozen=True)
class Curve:
    """One range of layers. rows: one per mask. points: one per fraction. area: by metric, the change averaged
    over the fractions above 0."""

    layers: range
    rows: list[dict[str, Any]]
    points: list[Point]
    area: dict[str, MeanOfMasks]

    @property
    def at(self) -> Point:
        """The point at the fraction AT."""
        return next(point for point in self.points if point.fraction == AT)


@dataclass(frozen=True)
class EquivalenceTest:
    """The tests of one metric's change at AT: within ± margin (equivalent), and not below −margin (not
    worse)."""

    layers: range
    metric: str
    delta: Estimate
    relative: Estimate
    p_equivalent: float
    p_not_worse: float


@dataclass(frozen=True)
class Halves:
    """The cost of heads of the lower half beside that of the upper half's, by metric.

    difference: the change averaged over all fractions, lower minus upper.
    p_adjusted: Holm-adjusted over metrics.
    """

    difference: dict[str, Estimate]
    p_adjusted: dict[str, float]


@dataclass(frozen=True)
class RandomHeads:
    """The curves of random masks and the tests of them.

    curves: all layers and, if there is more than one layer, the lower and the upper half. tests: by curve.
    """

    curves: list[Curve]
    tests: list[list[EquivalenceTest]]
    halves: Halves | None


def measure(study: Study) -> RandomHeads:
    """Draw the curves over all layers, the lower half and the upper half, and test the change at AT."""
    layers = study.shape[0]
    ranges = [range(layers)]
    if layers > 1:
        ranges += [range(layers // 2), range(layers // 2, layers)]
    resamples = Resamples(study.data, min(study.resamples, RESAMPLES), study.seed)
    rng = np.random.default_rng([study.seed, 2])
    draws = study.effort.draws
    weights = rng.multinomial(draws, np.full(draws, 1 / draws), size=len(resamples.counts)).astype(np.float64)
    weights[0] = 1
    curves = [_curve(study, resamples, weights, chosen) for chosen in ranges]
    tests = [_tests(curve, study.margin) for curve in curves]
    return RandomHeads(curves, tests, _halves(curves[1], curves[2]) if len(curves) == 3 else None)


def _curve(study: Study, resamples: Resamples, weights: Floats, layers: range) -> Curve:
    depth, width = study.shape
    steps, draws = study.effort.fractions, study.effort.draws
    among = "" if len(layers) == depth else f"/{layer_range(layers)}.*"
    grid = [(k / steps, seed) for k in range(steps + 1) for seed in range(draws)]
    specs = [f"random:{fraction}@{seed}{among}" for fraction, seed in grid]
    masks = [HeadMask.parse(spec, layers=depth, heads=width) for spec in specs]
    name = layer_range(layers)
    logits = study.runner.logits([mask.matrix for mask in masks], f"random heads of layers {name}")
    base = resamples.draws(study.runner.evaluation(logits[0]))
    rows, points = [], []
    area = {metric: MeanOfMasks(resamples, weights) for metric in METRICS}
    study.progress.start(f"bands of layers {name}", len(grid))
    for k in range(steps + 1):
        means = {metric: MeanOfMasks(resamples, weights) for metric in METRICS}
        relative = {metric: MeanOfMasks(resamples, weights) for metric in METRICS}
        for seed in range(draws):
            row = k * draws + seed
            after = resamples.draws(study.runner.evaluation(logits[row]))
            for metric in METRICS:
                change = after[metric] - base[metric]
                means[metric].add(seed, change)
                relative[metric].add(seed, after[metric].relative_to(base[metric]))
                if k:
                    area[metric].add(seed, change, 1 / steps)
            rows.append(
                {
                    "layers": name,
                    "fraction": k / steps,
                    "seed": seed,
                    "heads_on": masks[row].heads_on,
                    **{metric: float(after[metric].values[0]) for metric in METRICS},
                }
            )
            study.progress.advance()
        points.append(
            Point(
                k / steps,
                {metric: mean.estimate() for metric, mean in means.items()},
                {metric: mean.estimate() for metric, mean in relative.items()},
            )
        )
    return Curve(layers, rows, points, area)


def _tests(curve: Curve, margin: float) -> list[EquivalenceTest]:
    return [
        EquivalenceTest(
            curve.layers,
            metric,
            delta := curve.at.delta[metric],
            curve.at.relative[metric],
            equivalence_p(delta, margin),
            delta.p_above(-margin),
        )
        for metric in METRICS
    ]


def _halves(lower: Curve, upper: Curve) -> Halves:
    differences = {metric: lower.area[metric].minus(upper.area[metric]) for metric in METRICS}
    p = holm(np.array([d.p_changed() for d in differences.values()]))
    return Halves(differences, dict(zip(METRICS, p.tolist(), strict=True)))
