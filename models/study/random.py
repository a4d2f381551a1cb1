"""Heads off at random, more and more of them, over all layers and over each half."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from models.masks.head_mask import HeadMask
from models.quality.bootstrap import Draws, Estimate, Floats, Interval, estimate, standard_errors
from models.study import plots
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.statistics import LEVEL, METRICS, Resamples, equivalence_p
from models.study.study import Study
from models.study.wording import NAMES, TOO_FEW, layer_range, listed, p_value, percent, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

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
        self._influences = np.zeros(resamples.counts.shape[1])

    def add(self, mask: int, draws: Draws) -> None:
        """Add the change of one mask."""
        self._values[:, mask] = draws.values
        self._influences += draws.influences / self._weights.shape[1]

    def estimate(self) -> Estimate:
        """Return the mean change over masks."""
        masks = self._weights.shape[1]
        means = (self._weights * self._values).sum(1) / masks
        spread = (self._weights * (self._values - means[:, None]) ** 2).sum(1)
        between_masks = spread / masks / max(masks - 1, 1)
        variance = standard_errors(self._influences, self._resamples.counts) ** 2 + between_masks
        return estimate(means, np.sqrt(variance), testable=self._resamples.testable)


@dataclass(frozen=True)
class Point:
    """The mean over the random masks of one fraction: the change by metric, and accuracy's relative to the
    whole model's."""

    fraction: float
    delta: dict[str, Estimate]
    relative_accuracy: Estimate


@dataclass(frozen=True)
class Curve:
    """One range of layers. rows: one per mask. points: one per fraction."""

    layers: range
    rows: list[dict[str, Any]]
    points: list[Point]

    @property
    def at(self) -> Point:
        """The point at the fraction AT."""
        return next(point for point in self.points if point.fraction == AT)


def _curves(study: Study) -> list[Curve]:
    """Draw the curves over all layers and, if there is more than one, over the lower and the upper half."""
    layers = study.shape[0]
    ranges = [range(layers)]
    if layers > 1:
        ranges += [range(layers // 2), range(layers // 2, layers)]
    resamples = Resamples(study.data, min(study.effort.resamples, RESAMPLES), study.seed)
    rng = np.random.default_rng([study.seed, 2])
    draws = study.effort.draws
    weights = rng.multinomial(draws, np.full(draws, 1 / draws), size=len(resamples.counts)).astype(np.float64)
    weights[0] = 1
    return [_curve(study, resamples, weights, chosen) for chosen in ranges]


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
    study.progress.start(f"bands of layers {name}", len(grid))
    for k in range(steps + 1):
        means = {metric: MeanOfMasks(resamples, weights) for metric in METRICS}
        relative = MeanOfMasks(resamples, weights)
        for seed in range(draws):
            row = k * draws + seed
            after = resamples.draws(study.runner.evaluation(logits[row]))
            for metric in METRICS:
                means[metric].add(seed, after[metric] - base[metric])
            relative.add(seed, after["accuracy"].relative_to(base["accuracy"]))
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
        delta = {metric: mean.estimate() for metric, mean in means.items()}
        points.append(Point(k / steps, delta, relative.estimate()))
    return Curve(layers, rows, points)


def run(study: Study) -> Result:
    """Switch heads off at random, more and more of them."""
    curves = _curves(study)
    qwk = [curve.at.delta["qwk"] for curve in curves]
    accuracy = percent(curves[0].at.relative_accuracy.interval())
    ours = f"accuracy {accuracy}, ΔQWK {qwk[0].text()}"
    findings = [Finding("About 20 % of the heads can go at no loss (random choice, all layers)", "0 %", ours)]
    if len(curves) > 1:
        low, high = (layer_range(curve.layers) for curve in curves[1:])
        claim = f"Lower layers ({low}) matter more than upper ones ({high})"
        ours = f"ΔQWK with {AT:.0%} of a half off: lower {qwk[1].text()}, upper {qwk[2].text()}"
        findings.append(Finding(claim, "lower matter more", ours))
    tests = [
        {
            "layers": layer_range(curve.layers),
            "metric": metric,
            "fraction": AT,
            "margin": study.margin,
            "delta": change.value,
            "interval": [change.interval().low, change.interval().high],
            "p_equivalent": equivalence_p(change, study.margin),
        }
        for curve in curves
        for metric, change in curve.at.delta.items()
    ]
    outcome = _outcome(curves[0].at, study.margin)
    verdict = f"With {AT:.0%} of the heads off at random QWK changes by {signed(qwk[0].value)}: {outcome}."
    picture = Figure(
        "random-heads",
        f"Quality as heads go off at random: mean of {study.effort.draws} draws with 95 % bands (of "
        "the paired change); dots are single draws, the dashed line is the whole model. 100 % of a "
        "half is half of all heads.",
        partial(_draw, curves),
    )
    json = {"curves": [row for curve in curves for row in curve.rows], "equivalence": tests}
    return Result("random", json, verdict, (_section(study, curves),), picture, tuple(findings))


def _outcome(point: Point, margin: float) -> str:
    """Say of which metrics equivalence is shown."""
    if not any(change.testable for change in point.delta.values()):
        return TOO_FEW
    passed = [metric for metric in METRICS if equivalence_p(point.delta[metric], margin) <= LEVEL]
    others = [NAMES[metric] for metric in METRICS if metric not in passed]  # also those without a p
    if not others:
        return f"all four metrics are shown to stay within ± {margin} (two one-sided tests, 5 %)"
    if not passed:
        return f"no metric is shown to stay within ± {margin}"
    names = [NAMES[metric] for metric in passed]
    return f"{listed(names)} are shown to stay within ± {margin}, {listed(others)} not"


def _section(study: Study, curves: list[Curve]) -> Section:
    rows = tuple(
        (layer_range(curve.layers), NAMES[name], change.text(), p_value(equivalence_p(change, study.margin)))
        for curve in curves
        for name, change in curve.at.delta.items()
    )
    caption = f"At exactly {AT:.0%} off, mean of {study.effort.draws} draws, margin ± {study.margin}."
    return Section(
        "Heads off at random",
        (
            f"Masks random:F@S for F = 0, {1 / study.effort.fractions:.2f} … 1 and seeds 0 to "
            f"{study.effort.draws - 1}, over all layers, the lower and the upper half. Bands and "
            "tests treat both the queries and the masks as samples "
            f"({min(study.effort.resamples, RESAMPLES):,} resamples of both, symmetric bootstrap-t). “At no "
            "loss” asks that every metric stays within the margin, which needs no correction "
            "(intersection–union test).",
        ),
        (Table(("layers", "metric", "mean change (95 %)", "p equivalent"), rows, caption),),
    )


def _draw(curves: list[Curve]) -> Drawing:
    """Draw each metric against the share of heads off, with a line and its band per range of layers."""
    drawing, panels = plots.figure(13, 9.5, 2, 2)
    labels = ("all layers", "lower half", "upper half")
    for metric, axes in zip(METRICS, panels.flat, strict=True):
        base = curves[0].rows[0][metric]
        least = -1.0 if metric == "qwk" else 0.0
        for line, curve in enumerate(curves):
            colour = plots.LINES[line][0]
            x = [row["fraction"] * 100 for row in curve.rows]
            axes.plot(x, [row[metric] for row in curve.rows], ".", color=colour, alpha=0.18, markersize=4)
            changes = [point.delta[metric].interval() for point in curve.points]
            bands = [
                Interval(base + one.value, max(base + one.low, least), min(base + one.high, 1))
                for one in changes
            ]
            label = f"{labels[line]} ({layer_range(curve.layers)})"
            fractions = [point.fraction * 100 for point in curve.points]
            plots.curve(axes, fractions, bands, line=line, label=label)
        axes.axhline(base, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        axes.axvline(AT * 100, color=plots.GREY, ls=":", lw=1.2)
        axes.set_xlim(-2, 102)
        axes.set(title=NAMES[metric], xlabel="heads off, % of those in the range", ylabel=NAMES[metric])
    panels.flat[0].legend(loc="best")
    return drawing
