"""The report of `random`: JSON, verdict, findings, table and plot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from models.quality.bootstrap import Estimate, Interval
from models.study import plots
from models.study.random.compute import AT, RESAMPLES, Curve, Halves, RandomHeads
from models.study.result import Figure, Finding, Result, Section, Table, in_words
from models.study.statistics import LEVEL, METRICS, equivalence_p
from models.study.study import Study
from models.study.wording import NAMES, TOO_FEW, layer_range, listed, p_value, percent, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def result(study: Study, random: RandomHeads) -> Result:
    """Return the report of random heads."""
    outcome = _outcome(random.curves[0].at.delta, study.margin)
    findings = [_finding(study, random, outcome)]
    if random.halves is not None:
        findings.append(_halves_finding(random.halves, *random.curves[1:]))
    json = {
        "curves": [row for curve in random.curves for row in curve.rows],
        "equivalence": [
            _test_json(curve, metric, study.margin) for curve in random.curves for metric in METRICS
        ],
        "halves": None if random.halves is None else _halves_json(random.halves),
    }
    qwk = random.curves[0].at.delta["qwk"].value
    verdict = f"With {AT:.0%} of the heads off at random QWK changes by {signed(qwk)}: {outcome}."
    picture = Figure(
        "random-heads",
        f"Quality as heads go off at random: mean of {study.effort.draws} draws with 95 % bands (of "
        "the paired change); dots are single draws, the dashed line is the whole model. 100 % of a "
        "half is half of all heads.",
        partial(_draw, random.curves),
        "Curves of accuracy, macro-F1, QWK and NDCG@10 against the share of heads off.",
    )
    section = _section(study, random)
    return Result("random", json, verdict, in_words(findings), (section,), tuple(findings), picture)


def _outcome(changes: Mapping[str, Estimate], margin: float) -> str:
    """Say of which metrics equivalence is shown. changes: by metric."""
    if not any(change.testable for change in changes.values()):
        return TOO_FEW
    passed = [metric for metric in METRICS if equivalence_p(changes[metric], margin) <= LEVEL]
    others = [NAMES[metric] for metric in METRICS if metric not in passed]  # also those without a p
    if not others:
        return f"all four metrics are shown to stay within ± {margin} (two one-sided tests, 5 %)"
    if not passed:
        return f"no metric is shown to stay within ± {margin}"
    names = [NAMES[metric] for metric in passed]
    return f"{listed(names)} are shown to stay within ± {margin}, {listed(others)} not"


def _finding(study: Study, random: RandomHeads, outcome: str) -> Finding:
    point = random.curves[0].at
    passes = all(equivalence_p(change, study.margin) <= LEVEL for change in point.delta.values())
    worse = any(change.interval().high < -study.margin for change in point.delta.values())
    return Finding(
        "About 20 % of the heads can go at no loss (random choice, all layers)",
        "0 %",
        f"accuracy {percent(point.relative['accuracy'].interval())}, ΔQWK {point.delta['qwk'].text()}",
        True if passes else False if worse else None,
        outcome[0].upper() + outcome[1:] + ".",
    )


def _halves_finding(halves: Halves, lower: Curve, upper: Curve) -> Finding:
    difference, p = halves.difference["qwk"], halves.p_adjusted["qwk"]
    names = [layer_range(curve.layers) for curve in (lower, upper)]
    return Finding(
        f"Lower layers ({names[0]}) matter more than upper ones ({names[1]})",
        "lower matter more",
        f"QWK lower − upper, mean over fractions: {difference.text()}",
        difference.value < 0 if p <= LEVEL else None,
        f"Holm-adjusted p {p_value(p)} for QWK.",
    )


def _section(study: Study, random: RandomHeads) -> Section:
    header = ("layers", "metric", "mean change (95 %)", "p equivalent", "p not worse", "margin that passes")
    rows = tuple(_test_row(curve, metric, study.margin) for curve in random.curves for metric in METRICS)
    caption = f"At exactly {AT:.0%} off, mean of {study.effort.draws} draws, margin ± {study.margin}."
    return Section(
        "Heads off at random",
        (
            f"Masks random:F@S for F = 0, {1 / study.effort.fractions:.2f} … 1 and seeds 0 to "
            f"{study.effort.draws - 1}, over all layers, the lower and the upper half. Bands and "
            "tests treat both the queries and the masks as samples "
            f"({min(study.resamples, RESAMPLES):,} resamples of both, symmetric bootstrap-t). “At no "
            "loss” asks that every metric stays within the margin, which needs no correction "
            "(intersection–union test); the comparison of the halves is Holm-adjusted over metrics.",
        ),
        (Table(header, rows, caption),),
    )


def _test_row(curve: Curve, metric: str, margin: float) -> tuple[str, ...]:
    change = curve.at.delta[metric]
    ends = change.bounds(LEVEL)
    return (
        layer_range(curve.layers),
        NAMES[metric],
        change.text(),
        p_value(equivalence_p(change, margin)),
        p_value(change.p_above(-margin)),
        f"± {max(abs(ends.low), abs(ends.high)):.3f}" if math.isfinite(ends.low) else "–",
    )


def _test_json(curve: Curve, metric: str, margin: float) -> dict[str, Any]:
    change = curve.at.delta[metric]
    interval = change.interval()
    return {
        "layers": layer_range(curve.layers),
        "metric": metric,
        "fraction": AT,
        "margin": margin,
        "delta": interval.value,
        "interval": [interval.low, interval.high],
        "relative": curve.at.relative[metric].value,
        "p_equivalent": equivalence_p(change, margin),
        "p_not_worse": change.p_above(-margin),
    }


def _halves_json(halves: Halves) -> dict[str, Any]:
    return {
        metric: {
            "difference": difference.value,
            "interval": [difference.interval().low, difference.interval().high],
            "p_adjusted": halves.p_adjusted[metric],
        }
        for metric, difference in halves.difference.items()
    }


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
