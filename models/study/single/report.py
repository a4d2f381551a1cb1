"""The report of `single`: JSON, verdict, finding, table and plots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from models.study import plots
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.single.compute import SingleHeads
from models.study.statistics import JUDGED, LEVEL, METRICS
from models.study.study import Study
from models.study.wording import NAMES, TOO_FEW, head_name, p_value, percent, signed, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

SHOWN = 12
"""How many heads the table and each end of the plot of intervals show."""
QWK = METRICS.index("qwk")


def result(study: Study, single: SingleHeads) -> Result:
    """Return the report of single heads."""
    heads, effects = single.heads, single.effects
    order = sorted(range(len(heads)), key=lambda i: effects[i].delta["qwk"].value)
    lowers_qwk = single.by_metric[:, QWK] <= LEVEL
    harmful = sum(bool(lowers_qwk[i]) and effects[i].delta["qwk"].value < 0 for i in order)
    harmless = sum(effect.is_harmless(study.margin) for effect in effects)
    testable = all(effect.delta["qwk"].testable for effect in effects)
    shown = f"{harmless} of {len(heads)} heads are shown to cost less than {study.margin:g}"
    shown = shown if testable else TOO_FEW
    worst = effects[order[0]]
    cost = worst.delta["qwk"].interval()
    changed = int((single.adjusted <= LEVEL).sum())
    large = sum(any(abs(effect.delta[metric].value) > 0.01 for metric in JUDGED) for effect in effects)
    verdict = (
        f"Off alone, {harmful} of {len(heads)} heads lower QWK detectably; the costliest, "
        f"{head_name(heads[order[0]])}, by {signed(cost.value)}."
    )
    conclusion = (
        "Switching off one head at a time changes accuracy, QWK or NDCG@10 by more than 0.01 for "
        f"{large} of {len(heads)} heads; {shown} (one-sided tests, 5 %, one head at a time). The "
        f"change is more than chance for {changed} (Benjamini–Hochberg, {100 * LEVEL:.0f} % false "
        f"discoveries). The head that costs most QWK is {head_name(heads[order[0]])}: "
        f"{with_interval(cost)}, a relative change of accuracy of "
        f"{percent(worst.relative['accuracy'].interval())}."
    )
    half = len(heads) / 2
    finding = Finding(
        "Most heads can be switched off alone at hardly any loss (Michel et al. 2019)",
        "most heads",
        f"{shown}; {harmful} lower QWK detectably",
        True if harmless > half else False if harmful > half else None,
        "Replicated if more than half of the heads are shown to cost less than the margin in "
        "accuracy, QWK and NDCG@10; not replicated if more than half lower QWK detectably.",
    )
    maps = Figure(
        "single-heads",
        "Change of each metric in points (hundredths) with one head off; negative is a loss. "
        f"Framed: more than chance at {100 * LEVEL:.0f} % false discoveries.",
        partial(_maps, study.shape, single),
        "Four heat maps of layers by heads with the change of accuracy, macro-F1, QWK and NDCG@10.",
    )
    return Result(
        "single",
        {"heads": _json(single)},
        verdict,
        conclusion,
        (_section(study, single, order),),
        (finding,),
        maps,
    )


def _section(study: Study, single: SingleHeads, order: list[int]) -> Section:
    extremes = Figure(
        "single-intervals",
        "The heads that cost most and gain most QWK when off, with 95 % intervals; filled: more than chance.",
        partial(_extremes, single, order),
        "Intervals of the change of QWK for the most harmful and most helpful heads.",
    )
    return Section(
        "Each head off alone",
        (
            f"Intervals are 95 % (symmetric cluster bootstrap-t over queries, {study.resamples:,} "
            "resamples) and hold for one head at a time. p-values come from a paired permutation "
            f"test over queries ({study.effort.permutations:,} draws). A head's p combines its "
            "metrics (Bonferroni) and is adjusted over the heads by Benjamini–Hochberg; the p of one "
            "metric, which frames a cell of the maps, is adjusted over the heads alone.",
        ),
        (_table(single, order),),
        (extremes,),
    )


def _json(single: SingleHeads) -> list[dict[str, object]]:
    return [
        {
            "layer": layer,
            "head": head,
            **effect.as_json(),
            "p_adjusted": float(adjusted),
            "p_adjusted_by_metric": dict(zip(METRICS, by_metric.tolist(), strict=True)),
        }
        for (layer, head), effect, adjusted, by_metric in zip(
            single.heads, single.effects, single.adjusted, single.by_metric, strict=True
        )
    ]


def _table(single: SingleHeads, order: list[int]) -> Table:
    rows = [
        (
            head_name(single.heads[i]),
            *(with_interval(single.effects[i].delta[metric].interval()) for metric in METRICS),
            p_value(float(single.adjusted[i])),
        )
        for i in order[:SHOWN]
    ]
    header = ("head", *(f"Δ {NAMES[metric]}" for metric in METRICS), "adjusted p")
    return Table(header, tuple(rows), f"The {len(rows)} heads that cost most QWK. All heads: report.json.")


def _maps(shape: tuple[int, int], single: SingleHeads) -> Drawing:
    """Draw a heat map of each metric's change."""
    drawing, panels = plots.figure(15, 8.5, 2, 2)
    for column, (metric, axes) in enumerate(zip(METRICS, panels.flat, strict=True)):
        values, marked = np.full(shape, np.nan), np.zeros(shape, np.bool_)
        for head, effect, p in zip(single.heads, single.effects, single.by_metric, strict=True):
            values[head] = effect.delta[metric].value * 100
            marked[head] = p[column] <= LEVEL
        title = f"One head off: change of {NAMES[metric]}"
        plots.heat_map(axes, values, title=title, label="points (0.01)", marked=marked)
    return drawing


def _extremes(single: SingleHeads, order: list[int]) -> Drawing:
    """Draw the intervals of the heads at both ends of the order."""
    shown = order if len(order) <= 2 * SHOWN else order[:SHOWN] + order[-SHOWN:]
    drawing, axes = plots.figure(8, 0.28 * len(shown) + 1.4)
    plots.intervals(
        axes,
        [head_name(single.heads[i]) for i in shown],
        [single.effects[i].delta["qwk"].interval() for i in shown],
        marked=[bool(single.by_metric[i, QWK] <= LEVEL) for i in shown],
    )
    axes.set(xlabel="change of QWK, 95 % interval", ylabel="head (layer.head)")
    axes.set_title("The heads whose absence costs most and gains most")
    return drawing
