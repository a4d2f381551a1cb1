"""Heads off at random, more and more of them: how fast does quality fall, and does it matter in which
half?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from models.head_mask import HeadMask
from models.quality.bootstrap import Draws, Estimate, Floats, estimate, standard_errors
from models.study import claims, plots
from models.study.base import Figure, Finding, Result, Section, Study, Table
from models.study.statistics import METRICS, Resamples, equivalence_p, holm
from models.study.wording import NAMES, layer_range, listed, p_value, percent, signed, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

AT = 0.2
"""The fraction that the source study found removable at no loss."""
RESAMPLES = 1000
"""Enough for bands; each needs the draws of all masks of a fraction."""


@dataclass(frozen=True)
class Point:
    """The mean of the random masks of one fraction: change by metric, absolute and relative."""

    fraction: float
    delta: dict[str, Estimate]
    relative: dict[str, Estimate]


@dataclass(frozen=True)
class Curve:
    """One range of layers. rows: one a mask. points: one a fraction. area: the change averaged over the
    fractions above 0, by metric."""

    layers: range
    rows: list[dict[str, Any]]
    points: list[Point]
    area: dict[str, MeanOfMasks]


class MeanOfMasks:
    """The mean change over masks drawn at random, when queries and masks are both resampled.

    Both are samples: the standard error adds the variance between queries (of the mean over masks) and that
    between masks (Owen 2007, Annals of Applied Statistics 1, 386–411).
    """

    def __init__(self, resamples: Resamples, weights: Floats) -> None:
        """weights: (1 + resamples, masks): how often each mask is in each resample, row 0 ones."""
        self._resamples = resamples
        self._weights = weights
        self._values = np.zeros_like(weights)
        self._influences = np.zeros_like(resamples.counts)

    def add(self, mask: int, draws: Draws, share: float = 1.0) -> None:
        """One mask's change; `share` of it where a mask's change is itself a mean of several."""
        masks = self._weights.shape[1]
        self._values[:, mask] += share * draws.values
        self._influences += (share / masks) * self._weights[:, mask, None] * draws.influences

    def estimate(self) -> Estimate:
        """The mean change over masks."""
        variance = standard_errors(self._influences, self._resamples.counts) ** 2 + self._between_masks()
        return estimate(self._means(), np.sqrt(variance))

    def minus(self, other: MeanOfMasks) -> Estimate:
        """The difference of two means over the same queries, the masks of the two drawn apart."""
        influences = self._influences - other._influences
        variance = standard_errors(influences, self._resamples.counts) ** 2
        variance = variance + self._between_masks() + other._between_masks()
        return estimate(self._means() - other._means(), np.sqrt(variance))

    def _means(self) -> Floats:
        return np.asarray((self._weights * self._values).sum(1) / self._weights.shape[1])

    def _between_masks(self) -> Floats:
        """The variance of the mean that comes from the choice of masks, (1 + resamples,)."""
        masks = self._weights.shape[1]
        spread = (self._weights * (self._values - self._means()[:, None]) ** 2).sum(1)
        return np.asarray(spread / masks / max(masks - 1, 1))


def run(study: Study) -> Result:
    """Curves over all layers, the lower half and the upper half, and the tests at 20 %."""
    layers = study.shape[0]
    ranges = [range(layers)]
    if layers > 1:
        ranges += [range(layers // 2), range(layers // 2, layers)]
    resamples = Resamples(study.data, min(study.resamples, RESAMPLES), study.seed)
    rng = np.random.default_rng([study.seed, 2])
    draws = study.effort.draws
    weights = rng.multinomial(draws, np.full(draws, 1 / draws), size=len(resamples.counts)).astype(np.float64)
    weights[0] = 1
    curves = [_curve(study, resamples, weights, layers_) for layers_ in ranges]
    return _result(study, curves)


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
            place = k * draws + seed
            after = resamples.draws(study.runner.evaluation(logits[place]))
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
                    "heads_on": masks[place].heads_on,
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


def _result(study: Study, curves: list[Curve]) -> Result:
    at = [next(point for point in curve.points if point.fraction == AT) for curve in curves]
    tests = [_test(curve, point, study.margin) for curve, point in zip(curves, at, strict=True)]
    passes = {name: equivalence_p(at[0].delta[name], study.margin) <= 0.05 for name in METRICS}
    worse = {name: at[0].delta[name].interval().high < -study.margin for name in METRICS}
    off = round(AT * study.shape[0] * study.shape[1])
    verdict = _verdict(passes, study.margin)
    text = (
        f"With {AT:.0%} of all heads ({off}) off at random, averaged over {study.effort.draws} draws, QWK "
        f"changes by "
        f"{with_interval(at[0].delta['qwk'].interval())}, NDCG@10 by "
        f"{with_interval(at[0].delta['ndcg10'].interval())} and accuracy by "
        f"{with_interval(at[0].delta['accuracy'].interval())}, which is "
        f"{percent(at[0].relative['accuracy'].interval())} in relative terms: {verdict}."
    )
    findings = [
        Finding(
            "About 20 % of the heads can go at no loss (random choice, all layers)",
            "0 %",
            f"accuracy {percent(at[0].relative['accuracy'].interval())}, ΔQWK "
            f"{with_interval(at[0].delta['qwk'].interval())}",
            True if all(passes.values()) else False if any(worse.values()) else None,
            verdict[0].upper() + verdict[1:] + ".",
        )
    ]
    halves = _halves(curves[1], curves[2]) if len(curves) == 3 else None
    if halves is not None:
        text += " " + halves[0]
        findings.append(halves[1])
    tables = [
        Table(
            (
                "layers",
                "metric",
                "mean change (95 %)",
                "relative",
                "p equivalent",
                "p not worse",
                "margin that passes",
            ),
            tuple(row for rows in tests for row in rows[0]),
            f"At exactly {AT:.0%} off, mean of {study.effort.draws} draws, margin ± {study.margin}.",
        )
    ]
    section = Section(
        "Heads off at random",
        (
            f"Masks random:F@S for F = 0, {1 / study.effort.fractions:.2f} … 1 and seeds 0 to "
            f"{study.effort.draws - 1}, over all "
            "layers, the lower and the upper half. Bands and tests treat both the queries and the masks "
            f"as samples ({min(study.resamples, RESAMPLES):,} resamples of both, symmetric bootstrap-t). "
            "“No loss” asks that every metric passes, which needs no correction (intersection–union "
            "test); the comparison of the halves is Holm-adjusted over metrics.",
        ),
        tuple(tables),
        (
            Figure(
                "random-heads",
                f"Quality as heads go off at random: mean of {study.effort.draws} draws with 95 % bands "
                f"(of the paired "
                "change); dots are single draws, the dashed line is the whole model. 100 % of a half is "
                "half of all heads.",
                partial(_draw, curves),
                "Curves of accuracy, macro-F1, QWK and NDCG@10 against the share of heads off.",
            ),
        ),
    )
    rows = [row for curve in curves for row in curve.rows]
    json = {
        "curves": rows,
        "equivalence": [entry for _, entries in tests for entry in entries],
        "halves": None if halves is None else halves[2],
    }
    return Result("random", json, text, (section,), tuple(findings))


def _test(curve: Curve, point: Point, margin: float) -> tuple[list[tuple[str, ...]], list[dict[str, Any]]]:
    rows: list[tuple[str, ...]] = []
    entries: list[dict[str, Any]] = []
    for name in METRICS:
        change, layers = point.delta[name], layer_range(curve.layers)
        both, one = equivalence_p(change, margin), change.p_above(-margin)
        needed = max(abs(change.interval(0.9).low), abs(change.interval(0.9).high))
        interval = change.interval()
        rows.append(
            (
                layers,
                NAMES[name],
                with_interval(interval),
                _relative(curve, point, name),
                p_value(both),
                p_value(one),
                f"± {needed:.3f}",
            )
        )
        entries.append(
            {
                "layers": layers,
                "metric": name,
                "fraction": AT,
                "margin": margin,
                "delta": interval.value,
                "interval": [interval.low, interval.high],
                "relative": point.relative[name].value,
                "p_equivalent": both,
                "p_not_worse": one,
            }
        )
    return rows, entries


def _relative(curve: Curve, point: Point, name: str) -> str:
    """The relative change, where the whole model's metric is far enough from 0 to divide by."""
    return percent(point.relative[name].interval()) if curve.rows[0][name] > 0.05 else "–"


def _halves(lower: Curve, upper: Curve) -> tuple[str, Finding, dict[str, Any]]:
    """Does it cost more in the lower half? The change averaged over all fractions, lower minus upper."""
    differences = {}
    for name in METRICS:
        differences[name] = lower.area[name].minus(upper.area[name])
    p = holm(np.array([2 * min(d.p_below(0), d.p_above(0)) for d in differences.values()]))
    adjusted = dict(zip(METRICS, np.minimum(p, 1).tolist(), strict=True))
    found = differences["qwk"].interval()
    clear = adjusted["qwk"] <= 0.05
    last = [curve.points[-1].relative["accuracy"].interval() for curve in (lower, upper)]
    names = [layer_range(curve.layers) for curve in (lower, upper)]
    text = (
        f"Averaged over all fractions, heads of layers {names[0]} cost {abs(found.value):.3f} QWK "
        f"{'more' if found.value < 0 else 'less'} than those of layers {names[1]} ({signed(found.low)} to "
        f"{signed(found.high)}, Holm-adjusted p {p_value(adjusted['qwk'])})"
        + ("." if clear else ": no clear difference.")
        + f" With a whole half off, accuracy changes by {percent(last[0])} (layers {names[0]}) and "
        f"{percent(last[1])} (layers {names[1]})."
    )
    finding = Finding(
        f"Lower layers ({names[0]}) matter more than upper ones ({names[1]})",
        "lower matter more",
        f"QWK lower − upper, mean over fractions: {with_interval(found)}",
        None if not clear else found.value < 0,
        f"Holm-adjusted p {p_value(adjusted['qwk'])} for QWK.",
        claims.DEPTH,
    )
    entry = {
        name: {
            "difference": d.value,
            "interval": [d.interval().low, d.interval().high],
            "p_adjusted": adjusted[name],
        }
        for name, d in differences.items()
    }
    return text, finding, entry


def _verdict(passes: dict[str, bool], margin: float) -> str:
    if all(passes.values()):
        return f"all four metrics are shown to stay within ± {margin} (two one-sided tests, 5 %)"
    if not any(passes.values()):
        return f"for no metric is it shown that it stays within ± {margin}"
    shown, open_ = ([NAMES[name] for name in METRICS if passes[name] is told] for told in (True, False))
    return f"that it stays within ± {margin} is shown for {listed(shown)} and not for {listed(open_)}"


def _draw(curves: list[Curve]) -> Drawing:
    drawing, axes = plots.figure(13, 9.5, 2, 2)
    labels = ("all layers", "lower half", "upper half")
    for name, area in zip(METRICS, axes.flat, strict=True):
        base = curves[0].rows[0][name]
        for line, curve in enumerate(curves):
            colour = plots.LINES[line][0]
            x = [row["fraction"] * 100 for row in curve.rows]
            area.plot(x, [row[name] for row in curve.rows], ".", color=colour, alpha=0.18, markersize=4)
            found = [point.delta[name].interval() for point in curve.points]
            plots.curve(
                area,
                [point.fraction * 100 for point in curve.points],
                [base + f.value for f in found],
                [max(base + f.low, plots.LEAST[name]) for f in found],
                [min(base + f.high, 1) for f in found],
                line=line,
                label=f"{labels[line]} ({layer_range(curve.layers)})",
            )
        area.axhline(base, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        area.axvline(AT * 100, color=plots.GREY, ls=":", lw=1.2)
        area.set_xlim(-2, 102)
        area.set(title=NAMES[name], xlabel="heads off, % of those in the range", ylabel=NAMES[name])
    axes.flat[0].legend(loc="best")
    return drawing
