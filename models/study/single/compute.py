"""Each head off alone: what is lost, and is it more than chance? (Michel et al. 2019, arXiv:1905.10650,
§3.)"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.study import claims, plots
from models.study.base import Figure, Finding, Result, Section, Study, Table
from models.study.statistics import METRICS, Effect, Resamples, benjamini_hochberg, effect, swap_p
from models.study.wording import NAMES, p_value, percent, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

LEVEL = 0.05
JUDGED = ("accuracy", "qwk", "ndcg10")
"""A head is harmless where none of these falls by the margin."""
SHOWN = 12
"""Heads in the table and in the plot of intervals."""

Heads = list[tuple[int, int]]


def run(study: Study) -> Result:
    """Deltas of every head, with intervals, adjusted p-values and heat maps."""
    heads = [(layer, head) for layer, held in enumerate(study.classifier.config.kept_heads) for head in held]
    masks = [np.ones(study.shape, np.float32)]
    for head in heads:
        masks.append(masks[0].copy())
        masks[-1][head] = 0
    whole, *masked = study.runner.evaluate(masks, "single heads")
    resamples = Resamples(study.data, study.resamples, study.seed)
    base = resamples.draws(whole)
    effects = []
    study.progress.start("intervals of single heads", len(masked))
    for evaluation in masked:
        effects.append(effect(resamples, base, evaluation))
        study.progress.advance()
    adjusted = benjamini_hochberg(
        swap_p(resamples, whole, masked, draws=study.effort.permutations, seed=study.seed)
    )
    return _result(study, heads, effects, adjusted)


def _result(study: Study, heads: Heads, effects: list[Effect], adjusted: NDArray[np.float64]) -> Result:
    order = sorted(range(len(heads)), key=lambda i: effects[i].delta["qwk"].value)
    found = adjusted.min(1) <= LEVEL
    lowers_qwk = adjusted[:, METRICS.index("qwk")] <= LEVEL
    harmful = [i for i in order if lowers_qwk[i] and effects[i].delta["qwk"].value < 0]
    harmless = [
        one for one in effects if all(one.delta[name].p_above(-study.margin) <= LEVEL for name in JUDGED)
    ]
    small = [one for one in effects if all(abs(one.delta[name].value) <= 0.01 for name in JUDGED)]
    worst = order[0]
    cost = effects[worst].delta["qwk"].interval()
    text = (
        "Switching off one head at a time changes accuracy, QWK or NDCG@10 by more than 0.01 for "
        f"{len(heads) - len(small)} of {len(heads)} heads; for {len(harmless)} it is shown that none "
        f"falls by {study.margin} (one-sided tests, 5 %, one head at a time). For {int(found.sum())} "
        f"heads the change is more than chance (Benjamini–Hochberg, {LEVEL:.0%} false discoveries)"
        + (f", and {len(harmful)} lower QWK by more than chance. " if found.any() else ". ")
        + f"The head that costs most QWK is {_name(heads[worst])}: {with_interval(cost)}, "
        f"a relative change of accuracy of {percent(effects[worst].relative['accuracy'].interval())}."
    )
    half = len(heads) / 2
    finding = Finding(
        "Most heads can be switched off alone at hardly any loss (Michel et al. 2019)",
        "most heads",
        f"{len(harmless)} of {len(heads)} heads shown to cost less than {study.margin}; {len(harmful)} "
        "lower QWK detectably",
        True if len(harmless) > half else False if len(harmful) > half else None,
        "Replicated where more than half of the heads are shown to cost less than the margin in "
        "accuracy, QWK and NDCG@10; not, where more than half lower QWK detectably.",
        claims.DEPTH,
    )
    shape = study.shape
    section = Section(
        "Each head off alone",
        (
            f"Intervals are 95 % (symmetric cluster bootstrap-t over queries, {study.resamples:,} "
            "resamples) and hold for one head at a time. p-values come from a paired permutation test "
            f"over queries ({study.effort.permutations:,} draws) and are adjusted over all heads and "
            f"metrics together "
            "by Benjamini–Hochberg; a head's p is the smallest of its metrics'.",
        ),
        (_table(heads, effects, adjusted, order),),
        (
            Figure(
                "single-heads",
                "Change of each metric in points (hundredths) with one head off; negative is a loss. "
                f"Framed: more than chance at {LEVEL:.0%} false discoveries.",
                partial(_maps, shape, heads, effects, adjusted),
                "Four heat maps of layers by heads with the change of accuracy, macro-F1, QWK and NDCG@10.",
            ),
            Figure(
                "single-intervals",
                "The heads that cost most and gain most QWK when off, with 95 % intervals; filled: more "
                "than chance.",
                partial(_extremes, heads, effects, adjusted, order),
                "Intervals of the change of QWK for the most harmful and most helpful heads.",
            ),
        ),
    )
    return Result("single", {"heads": _json(heads, effects, adjusted)}, text, (section,), (finding,))


def _json(heads: Heads, effects: list[Effect], adjusted: NDArray[np.float64]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for (layer, head), one, p in zip(heads, effects, adjusted, strict=True):
        intervals = {name: one.delta[name].interval() for name in METRICS}
        rows.append(
            {
                "layer": layer,
                "head": head,
                "delta": {name: one.delta[name].value for name in METRICS},
                "relative": {name: one.relative[name].value for name in METRICS},
                "interval": {name: [found.low, found.high] for name, found in intervals.items()},
                "p_adjusted": float(p.min()),
                "p_adjusted_by_metric": dict(zip(METRICS, p.tolist(), strict=True)),
            }
        )
    return rows


def _table(heads: Heads, effects: list[Effect], adjusted: NDArray[np.float64], order: list[int]) -> Table:
    rows = [
        (
            _name(heads[i]),
            *(with_interval(effects[i].delta[name].interval()) for name in METRICS),
            percent(effects[i].relative["accuracy"].interval()),
            p_value(float(adjusted[i].min())),
        )
        for i in order[:SHOWN]
    ]
    header = ("head", *(f"Δ {NAMES[name]}" for name in METRICS), "relative Δ accuracy", "adjusted p")
    return Table(header, tuple(rows), f"The {len(rows)} heads that cost most QWK. All heads: report.json.")


def _maps(
    shape: tuple[int, int], heads: Heads, effects: list[Effect], adjusted: NDArray[np.float64]
) -> Drawing:
    drawing, axes = plots.figure(15, 12, 2, 2)
    for place, (name, area) in enumerate(zip(METRICS, axes.flat, strict=True)):
        values, marked = np.full(shape, np.nan), np.zeros(shape, np.bool_)
        for head, one, p in zip(heads, effects, adjusted, strict=True):
            values[head] = one.delta[name].value * 100
            marked[head] = p[place] <= LEVEL
        title = f"One head off: change of {NAMES[name]}"
        plots.heat_map(area, values, title=title, label="points (0.01)", marked=marked)
    return drawing


def _extremes(
    heads: Heads, effects: list[Effect], adjusted: NDArray[np.float64], order: list[int]
) -> Drawing:
    shown = order if len(order) <= 2 * SHOWN else order[:SHOWN] + order[-SHOWN:]
    drawing, axes = plots.figure(8, 0.28 * len(shown) + 1.4)
    found = [effects[i].delta["qwk"].interval() for i in shown]
    plots.intervals(
        axes,
        [_name(heads[i]) for i in shown],
        [(f.value * 100, f.low * 100, f.high * 100) for f in found],
        marked=[bool(adjusted[i, METRICS.index("qwk")] <= LEVEL) for i in shown],
    )
    axes.set(xlabel="change of QWK in points (0.01), 95 % interval", ylabel="head (layer.head)")
    axes.set_title("The heads whose absence costs most and gains most")
    return drawing


def _name(head: tuple[int, int]) -> str:
    return f"{head[0]}.{head[1]}"
