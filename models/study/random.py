"""Heads off at random, more and more of them, over all layers and over each half."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.files import Json
from headroom.models.masks.head_mask import HeadMask
from headroom.models.quality.bootstrap import (
    Draws,
    Estimate,
    Interval,
    MetricDraws,
    estimate,
    standard_errors,
)
from headroom.models.quality.evaluation import RANGES
from headroom.models.quality.metrics import NAMES
from headroom.models.quality.noninferiority import on_queries, too_few
from headroom.models.study import plots
from headroom.models.study.page import Figure, Finding, Result, Section, Table
from headroom.models.study.statistics import LEVEL, Resamples, holm, values_of
from headroom.models.study.study import Study
from headroom.models.study.wording import layer_range, listed, method, p_value, percent

AT = 0.2
"""The fraction that the source study found removable at no loss."""
RESAMPLES = 1000
"""Enough for bands; each resample needs the draws of all masks of a fraction."""


@dataclass(frozen=True)
class Curve:
    """One range of layers."""

    layers: str
    rows: list[Json]  # one per mask, for report.json
    changes: dict[float, dict[str, Estimate]]  # by fraction of heads off: the mean change of each metric
    relative: Estimate  # the mean relative change at AT of the metric `Measures.share`


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
    mean = Draws(values.mean(1), influences, changes[0].queries)
    return estimate(means, np.sqrt(variance), mean.by_query(), mean.queries)


def run(study: Study) -> Result:
    """Switch heads off at random, more and more of them, over all layers and, if there is more than one, over
    the lower and the upper half."""
    depth = study.shape[0]
    draws = study.effort.draws
    resamples = Resamples(study.whole, min(study.effort.resamples, RESAMPLES), study.seed)
    rng = np.random.default_rng([study.seed, 2])
    weights = rng.multinomial(draws, np.full(draws, 1 / draws), size=len(resamples.counts)).astype(np.float64)
    weights[0] = 1
    halves = [range(depth // 2), range(depth // 2, depth)] if depth > 1 else []
    curves = [_curve(study, resamples, weights, layers) for layers in (range(depth), *halves)]
    tests = [test for curve in curves for test in _equivalence(curve, study.margin)]
    verdict = _verdict(study, resamples, curves[0], tests)
    caption = f"At exactly {AT:.0%} off, mean of {draws} draws, margin ± {study.margin}."
    section = Section("Heads off at random", (method("random", study.measures),), (_table(tests, caption),))
    json = {"curves": [row for curve in curves for row in curve.rows], "equivalence": tests}
    return Result("random", json, verdict, (section,), _picture(study, curves), _findings(study, curves))


def _verdict(study: Study, resamples: Resamples, curve: Curve, tests: list[Json]) -> str:
    """Say what a random choice costs, and which metrics are shown to stay. curve: of all layers, whose tests
    are the first ones."""
    main = study.measures.main
    of_curve = tests[: len(study.measures.names)]
    within = listed([NAMES[test["metric"]] for test in of_curve if test["p_adjusted"] <= LEVEL])
    outcome = f"shown to stay within ± {study.margin} (two one-sided tests, 5 % for all of them): {within}"
    basis = on_queries(resamples.ranked, resamples.queries)
    return (
        f"With {AT:.0%} of the heads off at random {NAMES[main]} changes by "
        f"{curve.changes[AT][main].text()}, {basis}; {outcome}"
        f"{too_few(resamples.ranked, study.margin, LEVEL / len(of_curve))}."
    )


def _curve(study: Study, resamples: Resamples, weights: Floats, layers: range) -> Curve:
    """Switch random heads of these layers off. weights: of the draws, as in `mean_of_masks`."""
    depth, width = study.shape
    name = layer_range(layers)
    among = "" if len(layers) == depth else f"/{name}.*"
    grid = _fractions_and_seeds(study)
    specs = [f"random:{fraction}@{seed}{among}" for fraction, seed in grid]
    masks = [HeadMask.parse(spec, layers=depth, heads=width) for spec in specs]
    logits = study.runner.logits(
        study.data, [mask.matrix for mask in masks], f"random heads of layers {name}"
    )
    rows = []
    draws = defaultdict[float, list[MetricDraws]](list)
    stage = study.stage(f"bands of layers {name}", grid)
    for (fraction, seed), mask, of_mask in zip(stage, masks, logits, strict=True):
        after = resamples.draws(study.runner.evaluation(study.data, of_mask))
        row = {"layers": name, "fraction": fraction, "seed": seed, "heads_on": mask.heads_on}
        rows.append(row | values_of(after))
        draws[fraction].append(after)
    changes = {
        fraction: _mean_changes(resamples, of_fraction, weights) for fraction, of_fraction in draws.items()
    }
    share = study.measures.share
    relative = [one[share].relative_to(resamples.intact[share]) for one in draws[AT]]
    return Curve(name, rows, changes, mean_of_masks(resamples, relative, weights))


def _fractions_and_seeds(study: Study) -> list[tuple[float, int]]:
    """Return the fraction of heads that each mask of a curve switches off, and its seed."""
    steps = study.effort.fractions
    first = study.seed * study.effort.draws
    seeds = range(first, first + study.effort.draws)
    return [(step / steps, seed) for step in range(steps + 1) for seed in seeds]


def _mean_changes(resamples: Resamples, draws: list[MetricDraws], weights: Floats) -> dict[str, Estimate]:
    """Return the mean change of each metric over masks. draws: of each mask."""
    return {
        metric: mean_of_masks(resamples, [of_mask[metric] - intact for of_mask in draws], weights)
        for metric, intact in resamples.intact.items()
    }


def _equivalence(curve: Curve, margin: float) -> list[Json]:
    """Test each metric's mean change at AT: two one-sided tests of a change within ± margin (Schuirmann
    1987). p_adjusted is corrected for the number of metrics."""
    changes = curve.changes[AT]
    p = [max(change.p_above(-margin), change.p_below(margin)) for change in changes.values()]
    return [
        {
            "layers": curve.layers,
            "metric": metric,
            "fraction": AT,
            "margin": margin,
            "delta": change.value,
            "interval": change.interval().ends,
            "p_equivalent": p_raw,
            "p_adjusted": p_adjusted,
        }
        for (metric, change), p_raw, p_adjusted in zip(changes.items(), p, holm(p).tolist(), strict=True)
    ]


def _table(tests: list[Json], caption: str) -> Table:
    rows = []
    for test in tests:
        change = Interval(test["delta"], *test["interval"]).text(sign=True)
        rows.append((test["layers"], NAMES[test["metric"]], change, p_value(test["p_adjusted"])))
    return Table(("layers", "metric", "mean change (95 %)", "adjusted p equivalent"), tuple(rows), caption)


def _findings(study: Study, curves: list[Curve]) -> tuple[Finding, ...]:
    """Return the published claims beside our numbers."""
    main = study.measures.main
    changes = [curve.changes[AT][main].text() for curve in curves]
    relative = percent(curves[0].relative.interval())
    ours = f"{NAMES[study.measures.share]} {relative}, Δ {NAMES[main]} {changes[0]}"
    fifth = Finding(
        "About 20 % of the heads can go at no loss (random choice, all layers)", "0 % relative accuracy", ours
    )
    if len(curves) == 1:
        return (fifth,)
    claim = f"Lower layers ({curves[1].layers}) matter more than upper ones ({curves[2].layers})"
    ours = f"Δ {NAMES[main]} with {AT:.0%} of a half off: lower {changes[1]}, upper {changes[2]}"
    return fifth, Finding(claim, "lower matter more", ours)


def _picture(study: Study, curves: list[Curve]) -> Figure:
    caption = (
        f"Quality as heads go off at random: mean of {study.effort.draws} draws with 95 % bands (of the "
        "paired change); dots are single draws, the dashed line is the whole model, the dotted one a random "
        "order of the titles. 100 % of a half is half of all heads."
    )
    return Figure("random-heads", caption, partial(_draw, curves, study.whole.random_order_ndcg10()))


def _draw(curves: list[Curve], random_order: float) -> plots.Drawing:
    """Draw each metric against the share of heads off, with a line and its band per range of layers.

    random_order: the NDCG@10 of one.
    """
    drawing, panels = plots.figure(13, 9.5, 2, 2)
    labels = ("all layers", "lower half", "upper half")
    for metric, axes in zip(next(iter(curves[0].changes.values())), panels.flat, strict=True):
        base = curves[0].rows[0][metric]
        for line, curve in enumerate(curves):
            x = [row["fraction"] * 100 for row in curve.rows]
            y = [row[metric] for row in curve.rows]
            axes.plot(x, y, ".", color=plots.LINES[line][0], alpha=0.18, markersize=4)
            changes = [of_fraction[metric].interval() for of_fraction in curve.changes.values()]
            fractions = [fraction * 100 for fraction in curve.changes]
            label = f"{labels[line]} ({curve.layers})"
            plots.curve(
                axes,
                fractions,
                changes,
                line=line,
                label=label,
                base=base,
                limits=RANGES.get(metric, (0.0, 1.0)),
            )
        axes.axhline(base, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        if metric == "ndcg10":
            plots.random_order(axes, random_order)
        axes.axvline(AT * 100, color=plots.GREY, ls=":", lw=1.2)
        axes.set_xlim(-2, 102)
        axes.set(title=NAMES[metric], xlabel="heads off, % of those in the range", ylabel=NAMES[metric])
    panels.flat[0].legend(loc="best")
    return drawing
