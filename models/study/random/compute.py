"""Quality with more and more heads off at random, over all layers and over each half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.masks.head_mask import HeadMask
from models.quality.bootstrap import Draws, Estimate, Floats, estimate, standard_errors
from models.study.statistics import METRICS, Resamples, holm
from models.study.study import Study
from models.study.wording import layer_range

AT = 0.2
"""The fraction that the source study found removable at no loss."""
RESAMPLES = 1000
"""Enough for bands; each resample needs the draws of all masks of a fraction."""


class MeanOfMasks:
    """The mean change over masks drawn at random, with queries and masks both resampled.

    Both are samples: the standard error adds the variance between queries (of the mean over masks) and that
    between masks (Owen 2007, Annals of Applied Statistics 1, 386–411).
    """

    def __init__(self, resamples: Resamples, weights: Floats) -> None:
        """weights: (1 + resamples, masks), how often each mask is in each resample; row 0 is ones."""
        self._resamples = resamples
        self._weights = weights
        self._values = np.zeros_like(weights)
        self._influences = np.zeros(resamples.clusters)

    def add(self, mask: int, draws: Draws, share: float = 1.0) -> None:
        """Add the change of one mask, times `share` if the change of a mask is itself a mean of several."""
        self._values[:, mask] += share * draws.values
        self._influences += share * draws.influences / self._weights.shape[1]

    def estimate(self) -> Estimate:
        """Return the mean change over masks."""
        variance = standard_errors(self._influences, self._resamples.counts) ** 2 + self._between_masks()
        return estimate(self._means(), np.sqrt(variance), testable=self._resamples.testable)

    def minus(self, other: MeanOfMasks) -> Estimate:
        """Return the difference of two means over the same queries, with masks that were drawn apart."""
        variance = standard_errors(self._influences - other._influences, self._resamples.counts) ** 2
        variance = variance + self._between_masks() + other._between_masks()
        return estimate(self._means() - other._means(), np.sqrt(variance))

    def _means(self) -> Floats:
        return np.asarray((self._weights * self._values).sum(1) / self._weights.shape[1])

    def _between_masks(self) -> Floats:
        """Return the variance of the mean that comes from the choice of masks, (1 + resamples,)."""
        masks = self._weights.shape[1]
        spread = (self._weights * (self._values - self._means()[:, None]) ** 2).sum(1)
        return np.asarray(spread / masks / max(masks - 1, 1))


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
class Halves:
    """The cost of heads of the lower half beside that of the upper half's, by metric.

    difference: the change averaged over all fractions, lower minus upper.
    p_adjusted: Holm-adjusted over metrics.
    """

    difference: dict[str, Estimate]
    p_adjusted: dict[str, float]


@dataclass(frozen=True)
class RandomHeads:
    """The curves of random masks: all layers and, if there is more than one, the lower and the upper half."""

    curves: list[Curve]
    halves: Halves | None


def measure(study: Study) -> RandomHeads:
    """Draw the curves over all layers, the lower half and the upper half."""
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
    return RandomHeads(curves, _halves(curves[1], curves[2]) if len(curves) == 3 else None)


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


def _halves(lower: Curve, upper: Curve) -> Halves:
    differences = {metric: lower.area[metric].minus(upper.area[metric]) for metric in METRICS}
    p = holm(np.array([d.p_changed() for d in differences.values()]))
    return Halves(differences, dict(zip(METRICS, p.tolist(), strict=True)))
