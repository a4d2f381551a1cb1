"""The report of `layers`: JSON, verdict, findings, table and plots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from models.quality.bootstrap import Interval
from models.study import plots
from models.study.layers.compute import Change, Off, WholeLayers
from models.study.result import Figure, Finding, Result, Section, Table, in_words
from models.study.statistics import JUDGED, LEVEL
from models.study.study import Study
from models.study.wording import CHANGES, TOO_FEW, layer_range, p_value, percent, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

PUBLISHED_LOSS = -0.86
"""Relative accuracy with all heads of layers 0–5 off, in the source study."""
ALIKE = 0.9
"""A linear CKA of at least this counts as "hardly notice"."""


def result(study: Study, layers: WholeLayers) -> Result:
    """Return the report of whole layers."""
    depth = study.shape[0]
    alone = layers.sets[:depth]
    harmless = sum(off.effect.is_harmless(study.margin) for off in alone)
    worst = min(alone, key=lambda off: off.effect.delta["qwk"].value)
    testable = all(off.effect.delta["qwk"].testable for off in alone)
    shown = f"{harmless} of {depth} layers non-inferior (margin {study.margin})" if testable else TOO_FEW
    findings = []
    last = [change for change in layers.changes if change.later == depth - 1 and change.off < depth - 1]
    if last:
        findings.append(_notice_finding(alone, last, study.margin, shown))
    half = range(depth // 2)
    findings += [
        _half_finding(off, layers) for off in layers.sets if (off.how, off.layers) == ("below", half)
    ]
    verdict = (
        f"The heads of layer {worst.layers.start} cost most: without them QWK changes by "
        f"{signed(worst.effect.delta['qwk'].value)}; {shown}."
    )
    picture = Figure(
        "layers-off",
        "Quality with whole layers off, with 95 % bands: one layer alone, all from layer 0 up to it, "
        "all from it to the last. The dashed line is the whole model.",
        partial(_curves, depth, layers.sets),
        "Curves of QWK and relative accuracy against the layer.",
    )
    json = {
        "layers": [
            {
                "off": off.how,
                "layers": layer_range(off.layers),
                **off.effect.value,
                **off.effect.as_json(),
                "p_adjusted": off.p_adjusted,
            }
            for off in layers.sets
        ],
        "noticed": layers.changes,
    }
    section = _section(study, layers)
    return Result("layers", json, verdict, in_words(findings), (section,), tuple(findings), picture)


def _notice_finding(alone: list[Off], last: list[Change], margin: float, shown: str) -> Finding:
    """Return the finding on layers off alone. last: how alike the last layer stays without each earlier
    one."""
    harmless = sum(off.effect.is_harmless(margin) for off in alone)
    harmful = sum(_is_harmful(off, margin) for off in alone)
    alike = sum(change.cka.low >= ALIKE for change in last)
    noticed = sum(change.cka.high < ALIKE for change in last)
    holds = harmless > len(alone) / 2 and alike > len(last) / 2
    fails = harmful > len(alone) / 2 or noticed > len(last) / 2
    return Finding(
        "A whole layer's heads can go, and later layers hardly notice",
        "any layer",
        f"{shown}; last layer's CKA ≥ {ALIKE} for {alike} of {len(last)}",
        True if holds else False if fails else None,
        "Counted as replicated if both hold for more than half of the layers; as not replicated if "
        f"more than half are shown to cost more than the margin ({harmful} are) or to leave the last "
        f"layer a CKA below {ALIKE} ({noticed} are).",
    )


def _is_harmful(off: Off, margin: float) -> bool:
    """Return whether some metric is shown to fall by more than the margin (Bonferroni over the metrics)."""
    return any(off.effect.delta[metric].p_below(-margin) <= LEVEL / len(JUDGED) for metric in JUDGED)


def _half_finding(lower: Off, layers: WholeLayers) -> Finding:
    loss = lower.effect.relative["accuracy"].interval()
    floor = layers.majority / layers.accuracy - 1
    half = PUBLISHED_LOSS / 2
    return Finding(
        f"All heads of layers {layer_range(lower.layers)} off destroy the classifier",
        f"{signed(PUBLISHED_LOSS * 100, 0)} % relative accuracy",
        f"{percent(loss)} (QWK {signed(lower.effect.value['qwk'])} left)",
        True if loss.high < half else False if loss.low > half else None,
        "Counted as replicated if at least half of the published loss is shown. Always answering the "
        f"commonest grade would change accuracy by {signed(floor * 100, 0)} % here, so accuracy has "
        "little further to fall; QWK, 0 for such answers, says more.",
    )


def _section(study: Study, layers: WholeLayers) -> Section:
    rows = tuple(
        (str(off.layers.start), *off.effect.cells(), p_value(min(off.p_adjusted.values())))
        for off in layers.sets
        if off.how == "alone"
    )
    noticed = Figure(
        "layers-noticed",
        "How alike each later layer's output stays when one layer's heads are off: linear CKA (left) "
        "and mean cosine of the token vectors (right); 1 is unchanged.",
        partial(_noticed, study.shape[0], layers.changes),
        "Two heat maps, layer off by later layer.",
    )
    return Section(
        "Whole layers off",
        (
            "p-values come from a paired permutation test over queries "
            f"({study.effort.permutations:,} draws), adjusted by Holm over layers and metrics; a "
            "layer's p is the smallest of its metrics'. A layer is non-inferior if one-sided tests "
            f"show that accuracy, QWK and NDCG@10 each fall by less than {study.margin} (5 % each; "
            "all must pass). CKA and cosine come from a sample of tokens; their intervals resample queries.",
        ),
        (Table(("layer off", *CHANGES, "adjusted p"), rows, "Each layer's heads off alone."),),
        (noticed,) if layers.changes else (),
    )


def _curves(depth: int, sets: list[Off]) -> Drawing:
    drawing, panels = plots.figure(13, 5.2, 1, 2)
    labels = {"alone": "this layer alone", "below": "layers 0 to this one", "above": "this layer to the last"}
    base = sets[0].effect.value["qwk"] - sets[0].effect.delta["qwk"].value
    for line, how in enumerate(labels):
        chosen = [off.effect for off in sets if off.how == how]
        qwk = [effect.delta["qwk"].interval() for effect in chosen]
        qwk = [Interval(base + one.value, base + one.low, base + one.high) for one in qwk]
        accuracy = [effect.relative["accuracy"].interval() for effect in chosen]
        plots.curve(panels[0], range(depth), qwk, line=line, label=labels[how])
        plots.curve(panels[1], range(depth), accuracy, line=line, label=labels[how], scale=100)
    for axes, title, zero in ((panels[0], "QWK", base), (panels[1], "accuracy, relative change in %", 0.0)):
        axes.axhline(zero, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        axes.set(title=f"Whole layers off: {title}", xlabel="layer", ylabel=title)
        axes.set_xticks(range(depth))
    panels[0].legend(loc="best")
    return drawing


def _noticed(depth: int, changes: list[Change]) -> Drawing:
    drawing, panels = plots.figure(15, 6, 1, 2)
    for axes, name, title in ((panels[0], "cka", "linear CKA"), (panels[1], "cosine", "mean cosine")):
        values = np.full((depth, depth), np.nan)
        for change in changes:
            values[change.off, change.later] = getattr(change, name).value
        plots.heat_map(
            axes, values, title=f"Output with one layer off: {title}", label=title, x="later layer",
            y="layer whose heads are off", signed=False, limits=(min(0.5, float(np.nanmin(values))), 1),
            digits=2,
        )  # fmt: skip
    return drawing
