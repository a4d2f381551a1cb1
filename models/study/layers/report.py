"""The report of `layers`: JSON, verdict, findings, table and plots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.quality.bootstrap import Interval
from models.study import plots
from models.study.layers.compute import Off, WholeLayers
from models.study.layers.representations import Change
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.statistics import JUDGED, LEVEL, METRICS
from models.study.study import Study
from models.study.wording import NAMES, TOO_FEW, layer_range, p_value, percent, signed, with_interval

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
    harmless = [off for off in alone if off.effect.is_harmless(study.margin)]
    worst = min(alone, key=lambda off: off.effect.delta["qwk"].value)
    testable = all(off.effect.delta["qwk"].testable for off in alone)
    names = ", ".join(str(off.layers.start) for off in harmless) or "none"
    shown = f"{len(harmless)} of {depth} layers non-inferior (margin {study.margin})" if testable else TOO_FEW
    cost = worst.effect.delta["qwk"].interval()
    text = (
        f"Each layer's heads off alone: {shown}{f' ({names})' if testable else ''}. The costliest is layer "
        f"{worst.layers.start}: ΔQWK {with_interval(cost)}."
    )
    findings = []
    last = [change for change in layers.changes if change.later == depth - 1 and change.off < depth - 1]
    if last:
        text += " " + _notice_sentence(last)
        findings.append(_notice_finding(alone, last, study.margin, shown))
    halves = [
        off
        for off in layers.sets
        if off.how in ("below", "above") and off.layers in (range(depth // 2), range(depth // 2, depth))
    ]
    if len(halves) == 2:
        text += " " + _half_sentence(halves[0], halves[1])
        findings.append(_half_finding(halves[0], layers))
    verdict = (
        f"The heads of layer {worst.layers.start} cost most: without them QWK changes by "
        f"{signed(cost.value)}; {shown}."
    )
    picture = Figure(
        "layers-off",
        "Quality with whole layers off, with 95 % bands: one layer alone, all from layer 0 up to it, "
        "all from it to the last. The dashed line is the whole model.",
        partial(_curves, depth, layers.sets),
        "Curves of QWK and relative accuracy against the layer.",
    )
    return Result(
        "layers", _json(layers), verdict, text, (_section(study, layers),), tuple(findings), picture
    )


def _notice_sentence(last: list[Change]) -> str:
    """Say how much the last layer notices of each earlier layer being off."""
    lowest = min(last, key=lambda change: change.cka.value)
    return (
        f"The last layer's output keeps a linear CKA of at least {ALIKE} with its own without the change for "
        f"{_alike(last)} of the {len(last)} earlier layers; the lowest is {lowest.cka.value:.2f} "
        f"({lowest.cka.low:.2f} to {lowest.cka.high:.2f}), with layer {lowest.off} off."
    )


def _notice_finding(alone: list[Off], last: list[Change], margin: float, shown: str) -> Finding:
    """Return the finding on layers off alone. last: how alike the last layer stays without each earlier
    one."""
    harmless = sum(off.effect.is_harmless(margin) for off in alone)
    harmful = sum(_is_harmful(off, margin) for off in alone)
    noticed = sum(change.cka.high < ALIKE for change in last)
    holds = harmless > len(alone) / 2 and _alike(last) > len(last) / 2
    fails = harmful > len(alone) / 2 or noticed > len(last) / 2
    return Finding(
        "A whole layer's heads can go, and later layers hardly notice",
        "any layer",
        f"{shown}; last layer's CKA ≥ {ALIKE} for {_alike(last)} of {len(last)}",
        True if holds else False if fails else None,
        "Counted as replicated if both hold for more than half of the layers; as not replicated if "
        f"more than half are shown to cost more than the margin ({harmful} are) or to leave the last "
        f"layer a CKA below {ALIKE} ({noticed} are).",
    )


def _alike(last: list[Change]) -> int:
    return sum(change.cka.low >= ALIKE for change in last)


def _is_harmful(off: Off, margin: float) -> bool:
    """Return whether some metric is shown to fall by more than the margin (Bonferroni over the metrics)."""
    return any(off.effect.delta[metric].p_below(-margin) <= LEVEL / len(JUDGED) for metric in JUDGED)


def _half_sentence(lower: Off, upper: Off) -> str:
    parts = [
        f"layers {layer_range(off.layers)}: accuracy "
        f"{percent(off.effect.relative['accuracy'].interval())} relative, QWK "
        f"{with_interval(off.effect.delta['qwk'].interval())}"
        for off in (lower, upper)
    ]
    return f"All heads of a half off: {'; '.join(parts)}."


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
    depth = study.shape[0]
    rows = tuple(
        (
            str(off.layers.start),
            *(with_interval(off.effect.delta[metric].interval()) for metric in METRICS),
            p_value(min(off.p_adjusted.values())),
        )
        for off in layers.sets
        if off.how == "alone"
    )
    header = ("layer off", *(f"Δ {NAMES[metric]}" for metric in METRICS), "adjusted p")
    noticed = Figure(
        "layers-noticed",
        "How alike each later layer's output stays when one layer's heads are off: linear CKA (left) "
        "and mean cosine of the token vectors (right); 1 is unchanged.",
        partial(_noticed, depth, layers.changes),
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
        (Table(header, rows, "Each layer's heads off alone."),),
        (noticed,) if layers.changes else (),
    )


def _json(layers: WholeLayers) -> dict[str, Any]:
    return {
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
        "noticed": [
            {"off": c.off, "later": c.later, "cka": c.cka, "cosine": c.cosine} for c in layers.changes
        ],
    }


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
        values: NDArray[np.float64] = np.full((depth, depth), np.nan)
        for change in changes:
            values[change.off, change.later] = getattr(change, name).value
        plots.heat_map(
            axes,
            values,
            title=f"Output with one layer off: {title}",
            label=title,
            x="later layer",
            y="layer whose heads are off",
            signed=False,
            limits=(min(0.5, float(np.nanmin(values))), 1),
            digits=2,
        )
    return drawing
