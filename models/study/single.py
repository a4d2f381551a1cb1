"""Each head off alone: what is lost, and is it more than chance? (Michel et al. 2019, arXiv:1905.10650)"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from models.quality.bootstrap import Floats
from models.study import plots
from models.study.base import Heads, held_heads, weights_without
from models.study.result import Figure, Finding, Result, Section, Table, in_words
from models.study.statistics import (
    LEVEL,
    METRICS,
    Effect,
    benjamini_hochberg,
    benjamini_hochberg_by_head,
    effects,
)
from models.study.study import Study
from models.study.wording import CHANGES, NAMES, TOO_FEW, head_name, p_value, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

SHOWN = 12
"""How many heads the table shows."""


@dataclass(frozen=True)
class SingleHeads:
    """The effect of each head.

    adjusted: (heads,), p-values of any change, adjusted over heads. by_metric: (heads, METRICS), those of
    one metric's change, adjusted over heads.
    """

    heads: Heads
    effects: list[Effect]
    adjusted: Floats
    by_metric: Floats


def measure(study: Study) -> SingleHeads:
    """Switch each head off alone and compare the metrics with those of the whole model."""
    heads = held_heads(study.classifier)
    masks = [weights_without([head], study.shape) for head in heads]
    found, p, _ = effects(study, masks, "single heads")
    return SingleHeads(heads, found, benjamini_hochberg_by_head(p), benjamini_hochberg(p))


def result(study: Study, single: SingleHeads) -> Result:
    """Return the report of single heads."""
    heads, effects = single.heads, single.effects
    order = sorted(range(len(heads)), key=lambda i: effects[i].delta["qwk"].value)
    lowers_qwk = single.by_metric[:, METRICS.index("qwk")] <= LEVEL
    harmful = sum(bool(lowers_qwk[i]) and effects[i].delta["qwk"].value < 0 for i in order)
    harmless = sum(effect.is_harmless(study.margin) for effect in effects)
    testable = all(effect.delta["qwk"].testable for effect in effects)
    shown = f"{harmless} of {len(heads)} heads are shown to cost less than {study.margin:g}"
    shown = shown if testable else TOO_FEW
    verdict = (
        f"Off alone, {harmful} of {len(heads)} heads lower QWK detectably; the costliest, "
        f"{head_name(heads[order[0]])}, by {signed(effects[order[0]].delta['qwk'].value)}."
    )
    finding = Finding(
        "Most heads can be switched off alone at hardly any loss (Michel et al. 2019)",
        "most heads",
        f"{shown}; {harmful} lower QWK detectably",
    )
    maps = Figure(
        "single-heads",
        "Change of each metric in points (hundredths) with one head off; negative is a loss. "
        f"Framed: more than chance at {100 * LEVEL:.0f} % false discoveries.",
        partial(_maps, study.shape, single),
        "Four heat maps of layers by heads with the change of accuracy, macro-F1, QWK and NDCG@10.",
    )
    section = Section(
        "Each head off alone",
        (
            f"Intervals are 95 % (symmetric cluster bootstrap-t over queries, {study.resamples:,} "
            "resamples) and hold for one head at a time. p-values come from a paired permutation "
            f"test over queries ({study.effort.permutations:,} draws). A head's p combines its "
            "metrics (Bonferroni) and is adjusted over the heads by Benjamini–Hochberg; the p of one "
            "metric, which frames a cell of the maps, is adjusted over the heads alone.",
        ),
        (_table(single, order[:SHOWN]),),
    )
    findings = (finding,)
    return Result("single", {"heads": _json(single)}, verdict, in_words(findings), (section,), findings, maps)


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


def _table(single: SingleHeads, shown: list[int]) -> Table:
    rows = tuple(
        (head_name(single.heads[i]), *single.effects[i].cells(), p_value(float(single.adjusted[i])))
        for i in shown
    )
    caption = f"The {len(rows)} heads that cost most QWK. All heads: report.json."
    return Table(("head", *CHANGES, "adjusted p"), rows, caption)


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
