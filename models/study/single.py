"""Each head off alone: what is lost, and is it more than chance? (Michel et al. 2019, arXiv:1905.10650)"""

from functools import partial

import numpy as np

from models.quality.bootstrap import Floats
from models.study import plots
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.statistics import LEVEL, METRICS, Effect, adjusted_p, effects, holm
from models.study.study import Study
from models.study.wording import CHANGES, METHODS, NAMES, TOO_FEW, p_value

SHOWN = 12
"""How many heads the table shows."""


def run(study: Study) -> Result:
    """Switch each head off alone, and compare the metrics with those of the whole model."""
    heads = study.heads
    found, p = effects(study, [study.without([head]) for head in heads], "single heads")
    adjusted = adjusted_p(p)  # of any change
    qwk = np.array([effect.delta["qwk"].value for effect in found])
    order = np.argsort(qwk, kind="stable")
    needed = np.count_nonzero((adjusted <= LEVEL) & (qwk < 0))
    within_margin = holm([effect.non_inferiority_p(study.margin) for effect in found])
    harmless = np.count_nonzero(within_margin <= LEVEL)
    testable = all(effect.delta["qwk"].testable for effect in found)
    shown = f", {harmless} to cost less than {study.margin:g}" if testable else f" ({TOO_FEW})"
    ours = f"{needed} of {len(heads)} heads are shown to matter by themselves{shown}"
    names, worst = [f"{layer}.{head}" for layer, head in heads], order[0]
    verdict = (
        f"{ours}; without the costliest, {names[worst]}, QWK changes by {found[worst].delta['qwk'].text()}."
    )
    claim = "Most heads can be switched off alone at hardly any loss (Michel et al. 2019)"
    maps = Figure(
        "single-heads",
        "Change of each metric in points (hundredths) with one head off; negative is a loss. "
        f"Framed: heads that change quality by more than chance at {100 * LEVEL:.0f} % false discoveries.",
        partial(_maps, study, found, adjusted),
    )
    rows = tuple((names[i], *found[i].cells(), p_value(adjusted[i])) for i in order[:SHOWN])
    caption = f"The {len(rows)} heads that cost most QWK. All heads: report.json."
    table = Table(("head", *CHANGES, "adjusted p"), rows, caption)
    section = Section("Each head off alone", (METHODS["single"],), (table,))
    json = [
        {"layer": layer, "head": head, **effect.as_json(), "p_adjusted": p, "p_non_inferior": below_margin}
        for (layer, head), effect, p, below_margin in zip(
            heads, found, adjusted.tolist(), within_margin.tolist(), strict=True
        )
    ]
    finding = Finding(claim, "most heads", ours)
    return Result("single", {"heads": json}, verdict, (section,), maps, (finding,))


def _maps(study: Study, found: list[Effect], adjusted: Floats) -> plots.Drawing:
    """Draw a heat map of each metric's change."""
    drawing, panels = plots.figure(15, 8.5, 2, 2)
    for metric, axes in zip(METRICS, panels.flat, strict=True):
        changes = [effect.delta[metric].value * 100 for effect in found]
        title = f"One head off: change of {NAMES[metric]}"
        plots.heat_map(axes, study.shape, study.heads, changes, adjusted <= LEVEL, title, "points (0.01)")
    return drawing
