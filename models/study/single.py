"""Each head off alone: what is lost, and is it more than chance? (Michel et al. 2019, arXiv:1905.10650)"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from models.quality.bootstrap import Floats
from models.study import plots
from models.study.base import Heads, held_heads, weights_without
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.statistics import LEVEL, METRICS, Effect, adjusted_p, effects
from models.study.study import Study
from models.study.wording import CHANGES, NAMES, TOO_FEW, head_name, p_value, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

SHOWN = 12
"""How many heads the table shows."""


def run(study: Study) -> Result:
    """Switch each head off alone, and compare the metrics with those of the whole model."""
    heads = held_heads(study.classifier)
    masks = [weights_without([head], study.shape) for head in heads]
    found, p = effects(study, masks, "single heads")
    adjusted = adjusted_p(p)  # of any change
    order = sorted(range(len(heads)), key=lambda i: found[i].delta["qwk"].value)
    needed = sum(bool(adjusted[i] <= LEVEL) and found[i].delta["qwk"].value < 0 for i in order)
    harmless = sum(effect.is_harmless(study.margin) for effect in found)
    testable = all(effect.delta["qwk"].testable for effect in found)
    shown = f"{harmless} of {len(heads)} heads are shown to cost less than {study.margin:g}"
    verdict = (
        f"{needed} of {len(heads)} heads are shown to matter by themselves"
        + (f", and {harmless} to cost less than {study.margin:g}" if testable else "")
        + f"; without the costliest, {head_name(heads[order[0]])}, QWK changes by "
        f"{signed(found[order[0]].delta['qwk'].value)}."
    )
    claim = "Most heads can be switched off alone at hardly any loss (Michel et al. 2019)"
    maps = Figure(
        "single-heads",
        "Change of each metric in points (hundredths) with one head off; negative is a loss. "
        f"Framed: heads that change quality by more than chance at {100 * LEVEL:.0f} % false discoveries.",
        partial(_maps, study.shape, heads, found, adjusted),
    )
    rows = tuple((head_name(heads[i]), *found[i].cells(), p_value(float(adjusted[i]))) for i in order[:SHOWN])
    caption = f"The {len(rows)} heads that cost most QWK. All heads: report.json."
    section = Section(
        "Each head off alone",
        (
            f"Intervals are 95 % (symmetric cluster bootstrap-t over queries, {study.effort.resamples:,} "
            "resamples) and hold for one head at a time. p-values come from a paired permutation "
            f"test over queries ({study.effort.permutations:,} draws). A head's p combines its "
            "metrics (Bonferroni) and is adjusted over the heads by Benjamini–Hochberg. A head is shown to "
            f"matter if its p is at most {LEVEL:g} and QWK falls.",
        ),
        (Table(("head", *CHANGES, "adjusted p"), rows, caption),),
    )
    json = [
        {"layer": layer, "head": head, **effect.as_json(), "p_adjusted": p}
        for (layer, head), effect, p in zip(heads, found, adjusted.tolist(), strict=True)
    ]
    ours = f"{shown if testable else TOO_FEW}; {needed} are shown to matter"
    finding = Finding(claim, "most heads", ours)
    return Result("single", {"heads": json}, verdict, (section,), maps, (finding,))


def _maps(shape: tuple[int, int], heads: Heads, found: list[Effect], adjusted: Floats) -> Drawing:
    """Draw a heat map of each metric's change."""
    drawing, panels = plots.figure(15, 8.5, 2, 2)
    for metric, axes in zip(METRICS, panels.flat, strict=True):
        values, marked = np.full(shape, np.nan), np.zeros(shape, np.bool_)
        for head, effect, p in zip(heads, found, adjusted, strict=True):
            values[head] = effect.delta[metric].value * 100
            marked[head] = p <= LEVEL
        title = f"One head off: change of {NAMES[metric]}"
        plots.heat_map(axes, values, title=title, label="points (0.01)", marked=marked)
    return drawing
