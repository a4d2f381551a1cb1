"""The report of `random`: JSON, verdict, findings, table and plot."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from models.quality.bootstrap import Interval
from models.study import plots
from models.study.random.compute import AT, RESAMPLES, Curve, EquivalenceTest, Halves, RandomHeads
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.statistics import LEVEL, METRICS
from models.study.study import Study
from models.study.wording import NAMES, TOO_FEW, layer_range, listed, p_value, percent, signed, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def result(study: Study, random: RandomHeads) -> Result:
    """Return the report of random heads."""
    outcome = _outcome(random.tests[0], study.margin)
    text = _conclusion(study, random, outcome)
    findings = [_finding(study, random, outcome)]
    if random.halves is not None:
        _, lower, upper = random.curves
        text += " " + _halves_sentence(random.halves, lower, upper)
        findings.append(_halves_finding(random.halves, lower, upper))
    json = {
        "curves": [row for curve in random.curves for row in curve.rows],
        "equivalence": [_test_json(test, study.margin) for tests in random.tests for test in tests],
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
    return Result("random", json, verdict, text, (_section(study, random),), tuple(findings), picture)


def _conclusion(study: Study, random: RandomHeads, outcome: str) -> str:
    point = random.curves[0].at
    off = round(AT * study.shape[0] * study.shape[1])
    return (
        f"With {AT:.0%} of all heads ({off}) off at random, averaged over {study.effort.draws} draws, "
        f"QWK changes by {with_interval(point.delta['qwk'].interval())}, NDCG@10 by "
        f"{with_interval(point.delta['ndcg10'].interval())} and accuracy by "
        f"{with_interval(point.delta['accuracy'].interval())}, which is "
        f"{percent(point.relative['accuracy'].interval())} in relative terms: {outcome}."
    )


def _outcome(tests: list[EquivalenceTest], margin: float) -> str:
    if not any(test.delta.testable for test in tests):
        return TOO_FEW
    passed = [NAMES[test.metric] for test in tests if test.p_equivalent <= LEVEL]
    others = [NAMES[test.metric] for test in tests if NAMES[test.metric] not in passed]  # also without a p
    if not others:
        return f"all four metrics are shown to stay within ± {margin} (two one-sided tests, 5 %)"
    if not passed:
        return f"no metric is shown to stay within ± {margin}"
    return f"{listed(passed)} are shown to stay within ± {margin}, {listed(others)} not"


def _finding(study: Study, random: RandomHeads, outcome: str) -> Finding:
    point, tests = random.curves[0].at, random.tests[0]
    passes = all(test.p_equivalent <= LEVEL for test in tests)
    worse = any(test.delta.interval().high < -study.margin for test in tests)
    return Finding(
        "About 20 % of the heads can go at no loss (random choice, all layers)",
        "0 %",
        f"accuracy {percent(point.relative['accuracy'].interval())}, ΔQWK "
        f"{with_interval(point.delta['qwk'].interval())}",
        True if passes else False if worse else None,
        outcome[0].upper() + outcome[1:] + ".",
    )


def _halves_sentence(halves: Halves, lower: Curve, upper: Curve) -> str:
    difference, p = halves.difference["qwk"].interval(), halves.p_adjusted["qwk"]
    last = [curve.points[-1].relative["accuracy"].interval() for curve in (lower, upper)]
    names = [layer_range(curve.layers) for curve in (lower, upper)]
    return (
        f"Averaged over all fractions, heads of layers {names[0]} change QWK by "
        f"{with_interval(difference)} against those of layers {names[1]} (Holm-adjusted p "
        f"{p_value(p)}). With a whole half off, accuracy changes by {percent(last[0])} (layers "
        f"{names[0]}) and {percent(last[1])} (layers {names[1]})."
    )


def _halves_finding(halves: Halves, lower: Curve, upper: Curve) -> Finding:
    difference, p = halves.difference["qwk"].interval(), halves.p_adjusted["qwk"]
    names = [layer_range(curve.layers) for curve in (lower, upper)]
    return Finding(
        f"Lower layers ({names[0]}) matter more than upper ones ({names[1]})",
        "lower matter more",
        f"QWK lower − upper, mean over fractions: {with_interval(difference)}",
        difference.value < 0 if p <= LEVEL else None,
        f"Holm-adjusted p {p_value(p)} for QWK.",
    )


def _section(study: Study, random: RandomHeads) -> Section:
    header = ("layers", "metric", "mean change (95 %)", "p equivalent", "p not worse", "margin that passes")
    rows = tuple(_test_row(test) for tests in random.tests for test in tests)
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


def _test_row(test: EquivalenceTest) -> tuple[str, ...]:
    ends = test.delta.bounds(LEVEL)
    return (
        layer_range(test.layers),
        NAMES[test.metric],
        with_interval(test.delta.interval()),
        p_value(test.p_equivalent),
        p_value(test.p_not_worse),
        f"± {max(abs(ends.low), abs(ends.high)):.3f}" if math.isfinite(ends.low) else "–",
    )


def _test_json(test: EquivalenceTest, margin: float) -> dict[str, Any]:
    interval = test.delta.interval()
    return {
        "layers": layer_range(test.layers),
        "metric": test.metric,
        "fraction": AT,
        "margin": margin,
        "delta": interval.value,
        "interval": [interval.low, interval.high],
        "relative": test.relative.value,
        "p_equivalent": test.p_equivalent,
        "p_not_worse": test.p_not_worse,
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
            plots.curve(
                axes,
                [point.fraction * 100 for point in curve.points],
                [
                    Interval(base + one.value, max(base + one.low, least), min(base + one.high, 1))
                    for one in changes
                ],
                line=line,
                label=f"{labels[line]} ({layer_range(curve.layers)})",
            )
        axes.axhline(base, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        axes.axvline(AT * 100, color=plots.GREY, ls=":", lw=1.2)
        axes.set_xlim(-2, 102)
        axes.set(title=NAMES[metric], xlabel="heads off, % of those in the range", ylabel=NAMES[metric])
    panels.flat[0].legend(loc="best")
    return drawing
