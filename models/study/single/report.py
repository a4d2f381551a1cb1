"""The report of `single`: JSON, conclusion, finding, table and plots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from models.study import claims, plots
from models.study.heads import name as head_name
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.single.compute import SingleHeads
from models.study.statistics import JUDGED, LEVEL, METRICS, Effect
from models.study.study import Study
from models.study.wording import NAMES, TOO_FEW, p_value, percent, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

SHOWN = 12
"""How many heads the table and each end of the plot of intervals show."""
QWK = METRICS.index("qwk")


def result(study: Study, single: SingleHeads) -> Result:
    """Return the report of single heads."""
    order = sorted(range(len(single.heads)), key=lambda i: single.effects[i].delta["qwk"].value)
    lowers_qwk = single.by_metric[:, QWK] <= LEVEL
    harmful = sum(lowers_qwk[i] and single.effects[i].delta["qwk"].value < 0 for i in order)
    harmless = sum(effect.is_harmless(study.margin) for effect in single.effects)
    return Result(
        "single",
        {"heads": _json(single)},
        _conclusion(study, single, order[0], harmless, harmful),
        (_section(study, single, order),),
        (_finding(study, single, harmless, harmful),),
    )


def _conclusion(study: Study, single: SingleHeads, worst: int, harmless: int, harmful: int) -> str:
    heads, effects = single.heads, single.effects
    beyond_chance = int((single.adjusted <= LEVEL).sum())
    large = sum(any(abs(effect.delta[metric].value) > 0.01 for metric in JUDGED) for effect in effects)
    return (
        "Switching off one head at a time changes accuracy, QWK or NDCG@10 by more than 0.01 for "
        f"{large} of {len(heads)} heads; {_shown(effects, harmless, study.margin)}. For "
        f"{_heads(beyond_chance)} the change is more than chance (Benjamini–Hochberg, {LEVEL:.0%} false "
        "discoveries)"
        + (f", and for {_heads(harmful)} it is a loss of QWK. " if beyond_chance else ". ")
        + f"The head that costs most QWK is {head_name(heads[worst])}: "
        f"{with_interval(effects[worst].delta['qwk'].interval())}, "
        f"a relative change of accuracy of {percent(effects[worst].relative['accuracy'].interval())}."
    )


def _shown(effects: list[Effect], harmless: int, margin: float) -> str:
    if not _testable(effects):
        return TOO_FEW
    return (
        f"for {harmless} it is shown that none falls by {margin} (one-sided tests, 5 %, one head at a time)"
    )


def _testable(effects: list[Effect]) -> bool:
    return all(effect.delta["qwk"].testable for effect in effects)


def _heads(number: int) -> str:
    return {0: "no head", 1: "one head"}.get(number, f"{number} heads")


def _finding(study: Study, single: SingleHeads, harmless: int, harmful: int) -> Finding:
    heads = len(single.heads)
    half = heads / 2
    shown = f"{harmless} of {heads} heads shown to cost less than {study.margin}"
    return Finding(
        "Most heads can be switched off alone at hardly any loss (Michel et al. 2019)",
        "most heads",
        f"{shown if _testable(single.effects) else TOO_FEW}; {harmful} lower QWK detectably",
        True if harmless > half else False if harmful > half else None,
        "Replicated if more than half of the heads are shown to cost less than the margin in "
        "accuracy, QWK and NDCG@10; not replicated if more than half lower QWK detectably.",
        claims.DEPTH,
    )


def _section(study: Study, single: SingleHeads, order: list[int]) -> Section:
    return Section(
        "Each head off alone",
        (
            f"Intervals are 95 % (symmetric cluster bootstrap-t over queries, {study.resamples:,} "
            "resamples) and hold for one head at a time. p-values come from a paired permutation test "
            f"over queries ({study.effort.permutations:,} draws). A head's p combines its metrics "
            "(Bonferroni) and is adjusted over the heads by Benjamini–Hochberg; the p of one metric, which "
            "frames a cell of the maps, is adjusted over the heads alone.",
        ),
        (_table(single, order),),
        (
            Figure(
                "single-heads",
                "Change of each metric in points (hundredths) with one head off; negative is a loss. "
                f"Framed: more than chance at {LEVEL:.0%} false discoveries.",
                partial(_maps, study.shape, single),
                "Four heat maps of layers by heads with the change of accuracy, macro-F1, QWK and NDCG@10.",
            ),
            Figure(
                "single-intervals",
                "The heads that cost most and gain most QWK when off, with 95 % intervals; filled: more "
                "than chance.",
                partial(_extremes, single, order),
                "Intervals of the change of QWK for the most harmful and most helpful heads.",
            ),
        ),
    )


def _json(single: SingleHeads) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for i, ((layer, head), effect) in enumerate(zip(single.heads, single.effects, strict=True)):
        intervals = {metric: effect.delta[metric].interval() for metric in METRICS}
        rows.append(
            {
                "layer": layer,
                "head": head,
                "delta": {metric: effect.delta[metric].value for metric in METRICS},
                "relative": {metric: effect.relative[metric].value for metric in METRICS},
                "interval": {metric: [interval.low, interval.high] for metric, interval in intervals.items()},
                "p_adjusted": float(single.adjusted[i]),
                "p_adjusted_by_metric": dict(zip(METRICS, single.by_metric[i].tolist(), strict=True)),
            }
        )
    return rows


def _table(single: SingleHeads, order: list[int]) -> Table:
    rows = [
        (
            head_name(single.heads[i]),
            *(with_interval(single.effects[i].delta[metric].interval()) for metric in METRICS),
            percent(single.effects[i].relative["accuracy"].interval()),
            p_value(float(single.adjusted[i])),
        )
        for i in order[:SHOWN]
    ]
    header = ("head", *(f"Δ {NAMES[metric]}" for metric in METRICS), "relative Δ accuracy", "adjusted p")
    return Table(header, tuple(rows), f"The {len(rows)} heads that cost most QWK. All heads: report.json.")


def _maps(shape: tuple[int, int], single: SingleHeads) -> Drawing:
    """Draw a heat map of each metric's change."""
    drawing, panels = plots.figure(15, 12, 2, 2)
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
    intervals = [single.effects[i].delta["qwk"].interval() for i in shown]
    plots.intervals(
        axes,
        [head_name(single.heads[i]) for i in shown],
        [(interval.value * 100, interval.low * 100, interval.high * 100) for interval in intervals],
        marked=[bool(single.by_metric[i, QWK] <= LEVEL) for i in shown],
    )
    axes.set(xlabel="change of QWK in points (0.01), 95 % interval", ylabel="head (layer.head)")
    axes.set_title("The heads whose absence costs most and gains most")
    return drawing
