"""Each head off alone: what is lost, and is it more than chance? (Michel et al. 2019, arXiv:1905.10650)"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from headroom.models.quality.metrics import NAMES
from headroom.models.study import cross, plots
from headroom.models.study.page import Figure, Finding, Result, Section, Table
from headroom.models.study.statistics import LEVEL, Effect, Family, effects
from headroom.models.study.study import Study
from headroom.models.study.wording import changes_of, method, p_value

SHOWN = 12
"""How many heads the table shows."""


def run(study: Study) -> Result:
    """Switch each head off alone, and compare the metrics with those of the whole model; or the heads of the
    query generator, if the study is of these."""
    if study.part == "cross":
        return cross.run(study)
    heads = study.heads
    family = effects(study, [study.without([head]) for head in heads], "single heads")
    changes = family.effects
    names = [f"{layer}.{head}" for layer, head in heads]
    main = study.measures.main
    order = np.argsort([effect.delta[main].value for effect in changes], kind="stable").tolist()
    counts = _counts(family)
    verdict = f"{counts}."
    worst = costliest(changes, main)
    if worst is not None:
        change = changes[worst].delta[main].text()
        verdict = f"{counts}; {NAMES[main]} falls most without {names[worst]}: it changes by {change}."
    rows = tuple((names[i], *changes[i].cells(), p_value(changes[i].p_change)) for i in order[:SHOWN])
    caption = f"The {len(rows)} heads that cost most {NAMES[main]}. All heads: report.json."
    table = Table(("head", *changes_of(study.measures), "adjusted p"), rows, caption)
    maps = Figure(
        "single-heads",
        "Change of each metric in points (hundredths) with one head off; negative is a loss. "
        f"Framed: heads that change quality by more than chance at {100 * LEVEL:.0f} % false discoveries.",
        partial(_maps, study, changes),
    )
    rows_of_json = [
        {"layer": layer, "head": head, **effect.as_json()}
        for (layer, head), effect in zip(heads, changes, strict=True)
    ]
    claim = "Most heads can be switched off alone at hardly any loss (Michel et al. 2019)"
    return Result(
        "single",
        {"heads": rows_of_json},
        verdict,
        (Section("Each head off alone", (method("single", study.measures),), (table,)),),
        maps,
        (Finding(claim, "most heads", counts),),
    )


def costliest(changes: Sequence[Effect], metric: str) -> int | None:
    """Return the index of the head without which a metric falls most, among heads that are shown to matter
    and whose change of this metric is not within noise: a head may matter by another metric. None if there is
    none."""
    shown = [
        index
        for index, change in enumerate(changes)
        if change.matters and change.delta[metric].interval().is_below(0)
    ]
    return min(shown, key=lambda index: changes[index].delta[metric].value, default=None)


def _counts(family: Family) -> str:
    """Say how many heads matter, and how many cost less than the margin."""
    matter = sum(one.matters for one in family.effects)
    counts = f"{matter} of {len(family.effects)} heads are shown to matter by themselves"
    return f"{counts}; {family.claim('heads')}"


def _maps(study: Study, changes: list[Effect]) -> plots.Drawing:
    """Draw a heat map of each metric's change."""
    drawing, panels = plots.figure(15, 8.5, 2, 2)
    framed = np.array([effect.p_change <= LEVEL for effect in changes])
    for metric, axes in zip(study.measures.names, panels.flat, strict=True):
        points = [effect.delta[metric].value * 100 for effect in changes]
        title = f"One head off: change of {NAMES[metric]}"
        plots.heat_map(axes, study.shape, study.heads, points, framed, title, "points (0.01)")
    return drawing
