"""Heads off at random, more and more of them, over all layers and over each half."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from models.masks.head_mask import HeadMask
from models.quality.bootstrap import Draws, Estimate, Floats, Interval, estimate, standard_errors
from models.study import plots
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.statistics import LEVEL, METRICS, Resamples, holm
from models.study.study import Study
from models.study.wording import METHODS, NAMES, TOO_FEW, layer_range, listed, p_value, percent

AT = 0.2
"""The fraction that the source study found removable at no loss."""
RESAMPLES = 1000
"""Enough for bands; each resample needs the draws of all masks of a fraction."""


@dataclass(frozen=True)
class Curve:
    """One range of layers."""

    layers: str
    rows: list[dict[str, Any]]  # one per mask, for report.json
    deltas: dict[float, dict[str, Estimate]]  # by fraction of heads off: the mean change of each metric
    relative_accuracy: Estimate  # the mean relative change at AT


def mean_of_masks(resamples: Resamples, changes: Sequence[Draws], weights: Floats) -> Estimate:
    """Return the mean change over masks drawn at random, with queries and masks both resampled.

    Both are samples: the standard error adds the variance between queries (of the mean over masks) and that
    between masks (Owen 2007, Annals of Applied Statistics 1, 386–411).
    changes: one per mask. weights: (1 + resamples, masks), how often each mask is in each resample; row 0 is
    ones.
    """
    masks = len(changes)
    values = np.stack([one.values for one in changes], 1)
    influences = np.sum([one.influences / masks for one in changes], axis=0)
    means = (weights * values).sum(1) / masks
    spread = (weights * (values - means[:, None]) ** 2).sum(1)
    between_masks = spread / masks / max(masks - 1, 1)
    variance = standard_errors(influences, resamples.counts) ** 2 + between_masks
    return estimate(means, np.sqrt(variance), testable=resamples.testable)


def _curve(study: Study, resamples: Resamples, weights: Floats, layers: range) -> Curve:
    depth, width = study.shape
    steps, seeds, name = study.effort.fractions, range(study.effort.draws), layer_range(layers)
    among = "" if len(layers) == depth else f"/{name}.*"
    grid = [(k / steps, seed) for k in range(steps + 1) for seed in seeds]
    specs = [f"random:{fraction}@{seed}{among}" for fraction, seed in grid]
    masks = [HeadMask.parse(spec, layers=depth, heads=width) for spec in specs]
    matrices = [mask.matrix for mask in masks]
    logits = study.runner.logits(study.data, matrices, f"random heads of layers {name}")
    base, draws, rows = resamples.intact, [], []
    study.progress.start(f"bands of layers {name}", len(grid))
    for (fraction, seed), mask, of_mask in zip(grid, masks, logits, strict=True):
        after = resamples.draws(study.runner.evaluation(study.data, of_mask))
        values = {metric: float(after[metric].values[0]) for metric in METRICS}
        place = {"layers": name, "fraction": fraction, "seed": seed, "heads_on": mask.heads_on}
        rows.append(place | values)
        draws.append(after)
        study.progress.advance()
    by_fraction = {k / steps: draws[k * len(seeds) : (k + 1) * len(seeds)] for k in range(steps + 1)}
    deltas = {
        fraction: {
            metric: mean_of_masks(resamples, [one[metric] - base[metric] for one in of_fraction], weights)
            for metric in METRICS
        }
        for fraction, of_fraction in by_fraction.items()
    }
    relative = [one["accuracy"].relative_to(base["accuracy"]) for one in by_fraction[AT]]
    return Curve(name, rows, deltas, mean_of_masks(resamples, relative, weights))


def run(study: Study) -> Result:
    """Switch heads off at random, more and more of them, over all layers and, if there is more than one, over
    the lower and the upper half."""
    depth, draws, margin = study.shape[0], study.effort.draws, study.margin
    (whole,) = study.runner.evaluate(study.data, [study.without(())], "whole model")
    resamples = Resamples(whole, min(study.effort.resamples, RESAMPLES), study.seed)
    rng = np.random.default_rng([study.seed, 2])
    weights = rng.multinomial(draws, np.full(draws, 1 / draws), size=len(resamples.counts)).astype(np.float64)
    weights[0] = 1
    ranges = [range(depth), range(depth // 2), range(depth // 2, depth)][: 3 if depth > 1 else 1]
    curves = [_curve(study, resamples, weights, layers) for layers in ranges]
    qwk = [curve.deltas[AT]["qwk"] for curve in curves]
    ours = f"accuracy {percent(curves[0].relative_accuracy.interval())}, ΔQWK {qwk[0].text()}"
    findings = [Finding("About 20 % of the heads can go at no loss (random choice, all layers)", "0 %", ours)]
    if depth > 1:
        claim = f"Lower layers ({curves[1].layers}) matter more than upper ones ({curves[2].layers})"
        ours = f"ΔQWK with {AT:.0%} of a half off: lower {qwk[1].text()}, upper {qwk[2].text()}"
        findings.append(Finding(claim, "lower matter more", ours))
    tests, rows = list[dict[str, Any]](), []
    for curve in curves:
        for metric, change in curve.deltas[AT].items():
            # Two one-sided tests (Schuirmann 1987) of a change within ± margin.
            interval, p = change.interval(), max(change.p_above(-margin), change.p_below(margin))
            test = {"layers": curve.layers, "metric": metric, "fraction": AT, "margin": margin}
            ends = [interval.low, interval.high]
            tests.append({**test, "delta": change.value, "interval": ends, "p_equivalent": p})
            rows.append((curve.layers, NAMES[metric], change.text(), p_value(p)))
    shown = holm([test["p_equivalent"] for test in tests[: len(METRICS)]]) <= LEVEL
    same = listed([NAMES[metric] for metric, one in zip(METRICS, shown, strict=True) if one])
    outcome = f"shown to stay within ± {margin} (two one-sided tests, 5 % for all of them): {same}"
    verdict = (
        f"With {AT:.0%} of the heads off at random QWK changes by {qwk[0].text()}; "
        f"{outcome if resamples.testable else TOO_FEW}."
    )
    picture = Figure(
        "random-heads",
        f"Quality as heads go off at random: mean of {draws} draws with 95 % bands (of the paired change); "
        "dots are single draws, the dashed line is the whole model. 100 % of a half is half of all heads.",
        partial(_draw, curves),
    )
    header = ("layers", "metric", "mean change (95 %)", "p equivalent")
    caption = f"At exactly {AT:.0%} off, mean of {draws} draws, margin ± {margin}."
    table = Table(header, tuple(rows), caption)
    section = Section("Heads off at random", (METHODS["random"],), (table,))
    json = {"curves": [row for curve in curves for row in curve.rows], "equivalence": tests}
    return Result("random", json, verdict, (section,), picture, tuple(findings))


def _draw(curves: list[Curve]) -> plots.Drawing:
    """Draw each metric against the share of heads off, with a line and its band per range of layers."""
    drawing, panels = plots.figure(13, 9.5, 2, 2)
    labels = ("all layers", "lower half", "upper half")
    for metric, axes in zip(METRICS, panels.flat, strict=True):
        base = curves[0].rows[0][metric]
        least = -1.0 if metric == "qwk" else 0.0
        for line, curve in enumerate(curves):
            x = [row["fraction"] * 100 for row in curve.rows]
            colour, y = plots.LINES[line][0], [row[metric] for row in curve.rows]
            axes.plot(x, y, ".", color=colour, alpha=0.18, markersize=4)
            changes = [deltas[metric].interval() for deltas in curve.deltas.values()]
            bands = [
                Interval(base + one.value, max(base + one.low, least), min(base + one.high, 1))
                for one in changes
            ]
            fractions = [fraction * 100 for fraction in curve.deltas]
            plots.curve(axes, fractions, bands, line=line, label=f"{labels[line]} ({curve.layers})")
        axes.axhline(base, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        axes.axvline(AT * 100, color=plots.GREY, ls=":", lw=1.2)
        axes.set_xlim(-2, 102)
        axes.set(title=NAMES[metric], xlabel="heads off, % of those in the range", ylabel=NAMES[metric])
    panels.flat[0].legend(loc="best")
    return drawing
