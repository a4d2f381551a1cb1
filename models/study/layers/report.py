"""The report of `layers`: JSON, conclusion, findings, table and plots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.quality.bootstrap import Interval
from models.study import claims, plots
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
    last = [change for change in layers.changes if change.later == depth - 1 and change.off < depth - 1]
    shown = (
        f"of {depth} layers whose heads were switched off one at a time, {len(harmless)} are shown to "
        f"cost less than {study.margin} in accuracy, QWK and NDCG@10 ({_numbers(harmless)})"
        if _testable(alone)
        else TOO_FEW
    )
    text = (
        f"{shown[0].upper()}{shown[1:]}. The costliest "
        f"is layer {worst.layers.start}: ΔQWK {with_interval(worst.effect.delta['qwk'].interval())}."
    )
    findings = []
    if last:
        text += " " + _notice_sentence(last)
        findings.append(_notice_finding(alone, last, study.margin))
    halves = [
        off
        for off in layers.sets
        if off.how in ("below", "above") and off.layers in (range(depth // 2), range(depth // 2, depth))
    ]
    if len(halves) == 2:
        text += " " + _half_sentence(halves[0], halves[1])
        findings.append(_half_finding(halves[0], layers))
    return Result("layers", _json(layers), text, (_section(study, layers),), tuple(findings))


def _notice_sentence(last: list[Change]) -> str:
    """Say how much the last layer notices of each earlier layer being off."""
    lowest = min(last, key=lambda change: change.cka.value)
    return (
        f"The last layer's output keeps a linear CKA of at least {ALIKE} with its own without the "
        f"change for {_alike(last)} of the {len(last)} earlier layers; the lowest is "
        f"{lowest.cka.value:.2f} ({lowest.cka.low:.2f} to {lowest.cka.high:.2f}), with layer "
        f"{lowest.off} off."
    )


def _notice_finding(alone: list[Off], last: list[Change], margin: float) -> Finding:
    """Return the finding on layers off alone. last: what the last layer notices of each earlier one."""
    harmless = sum(off.effect.is_harmless(margin) for off in alone)
    harmful = sum(_is_harmful(off, margin) for off in alone)
    noticed = sum(change.cka.high < ALIKE for change in last)
    shown = f"{harmless} of {len(alone)} layers non-inferior (margin {margin})"
    holds = harmless > len(alone) / 2 and _alike(last) > len(last) / 2
    fails = harmful > len(alone) / 2 or noticed > len(last) / 2
    return Finding(
        "A whole layer's heads can go, and later layers hardly notice",
        "any layer",
        f"{shown if _testable(alone) else TOO_FEW}; last layer's "
        f"CKA ≥ {ALIKE} for {_alike(last)} of {len(last)}",
        True if holds else False if fails else None,
        "Counted as replicated if both hold for more than half of the layers"
        + (
            "."
            if holds
            else f"; as not replicated if more than half are shown to cost more than the margin ({harmful} "
            f"are) or to leave the last layer a CKA below {ALIKE} ({noticed} are)."
        ),
        claims.DEPTH,
    )


def _alike(last: list[Change]) -> int:
    return sum(change.cka.low >= ALIKE for change in last)


def _half_sentence(lower: Off, upper: Off) -> str:
    names = [layer_range(off.layers) for off in (lower, upper)]
    losses = [percent(off.effect.relative["accuracy"].interval()) for off in (lower, upper)]
    qwk = [with_interval(off.effect.delta["qwk"].interval()) for off in (lower, upper)]
    return (
        f"All heads of layers {names[0]} off: accuracy {losses[0]} relative, QWK {qwk[0]}; "
        f"layers {names[1]}: {losses[1]}, QWK {qwk[1]}."
    )


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
        claims.DEPTH,
    )


def _section(study: Study, layers: WholeLayers) -> Section:
    depth = study.shape[0]
    rows = []
    for off in layers.sets:
        if off.how == "alone":
            cells = [with_interval(off.effect.delta[metric].interval()) for metric in METRICS]
            p = min(off.p_adjusted.values())
            rows.append(
                (
                    str(off.layers.start),
                    *cells,
                    p_value(p),
                    "yes" if off.effect.is_harmless(study.margin) else "no",
                )
            )
    header = (
        "layer off",
        *(f"Δ {NAMES[metric]}" for metric in METRICS),
        "adjusted p",
        f"within {study.margin}",
    )
    figures = [
        Figure(
            "layers-off",
            "Quality with whole layers off, with 95 % bands: one layer alone, all from layer 0 up to it, "
            "all from it to the last. The dashed line is the whole model.",
            partial(_curves, depth, layers.sets),
            "Curves of QWK and relative accuracy against the layer.",
        )
    ]
    if layers.changes:
        figures.append(
            Figure(
                "layers-noticed",
                "How alike each later layer's output stays when one layer's heads are off: linear CKA "
                "(left) and mean cosine of the token vectors (right); 1 is unchanged.",
                partial(_noticed, depth, layers.changes),
                "Two heat maps, layer off by later layer.",
            )
        )
    return Section(
        "Whole layers off",
        (
            f"p-values come from a paired permutation test over queries ({study.effort.permutations:,} "
            f"draws), "
            "adjusted by Holm over layers and metrics; a layer's p is the smallest of its metrics'. "
            f"“Within {study.margin}”: one-sided tests show that accuracy, QWK and NDCG@10 each fall by "
            "less (5 % each; all must pass). CKA and cosine come from a sample of tokens; their "
            "intervals resample queries.",
        ),
        (Table(header, tuple(rows), "Each layer's heads off alone."),),
        tuple(figures),
    )


def _testable(alone: list[Off]) -> bool:
    return all(off.effect.delta["qwk"].testable for off in alone)


def _is_harmful(off: Off, margin: float) -> bool:
    """Return whether some metric is shown to fall by more than the margin (Bonferroni over the metrics)."""
    return any(off.effect.delta[metric].p_below(-margin) <= LEVEL / len(JUDGED) for metric in JUDGED)


def _numbers(sets: list[Off]) -> str:
    return ", ".join(str(off.layers.start) for off in sets) or "none"


def _json(layers: WholeLayers) -> dict[str, Any]:
    rows = []
    for off in layers.sets:
        intervals = {metric: off.effect.delta[metric].interval() for metric in METRICS}
        rows.append(
            {
                "off": off.how,
                "layers": layer_range(off.layers),
                **off.effect.value,
                "delta": {metric: interval.value for metric, interval in intervals.items()},
                "interval": {metric: [interval.low, interval.high] for metric, interval in intervals.items()},
                "relative": {metric: off.effect.relative[metric].value for metric in METRICS},
                "p_adjusted": off.p_adjusted,
            }
        )
    noticed = [
        {"off": c.off, "later": c.later, "cka": _interval_json(c.cka), "cosine": _interval_json(c.cosine)}
        for c in layers.changes
    ]
    return {"layers": rows, "noticed": noticed}


def _interval_json(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _curves(depth: int, sets: list[Off]) -> Drawing:
    drawing, panels = plots.figure(13, 5.2, 1, 2)
    labels = {"alone": "this layer alone", "below": "layers 0 to this one", "above": "this layer to the last"}
    base = sets[0].effect.value["qwk"] - sets[0].effect.delta["qwk"].value
    for line, how in enumerate(labels):
        chosen = [off for off in sets if off.how == how]
        qwk = [off.effect.delta["qwk"].interval() for off in chosen]
        accuracy = [off.effect.relative["accuracy"].interval() for off in chosen]
        for axes, intervals, offset, factor in ((panels[0], qwk, base, 1), (panels[1], accuracy, 0, 100)):
            plots.curve(
                axes,
                list(range(depth)),
                [offset + f.value * factor for f in intervals],
                [offset + f.low * factor for f in intervals],
                [offset + f.high * factor for f in intervals],
                line=line,
                label=labels[how],
            )
    for axes, title, zero in ((panels[0], "QWK", base), (panels[1], "accuracy, relative change in %", 0.0)):
        axes.axhline(zero, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        axes.set(title=f"Whole layers off: {title}", xlabel="layer", ylabel=title)
        axes.set_xticks(range(depth))
    panels[0].legend(loc="best")
    return drawing


def _noticed(depth: int, changes: list[Change]) -> Drawing:
    drawing, panels = plots.figure(15, 6, 1, 2)
    for axes, name in zip(panels, ("cka", "cosine"), strict=True):
        values: NDArray[np.float64] = np.full((depth, depth), np.nan)
        for change in changes:
            values[change.off, change.later] = getattr(change, name).value
        title = "linear CKA" if name == "cka" else "mean cosine"
        plots.heat_map(
            axes,
            values,
            title=f"Output with off layer off: {title}",
            label=title,
            x="layer looked at",
            y="layer whose heads are off",
            signed=False,
            limits=(min(0.5, float(np.nanmin(values))), 1),
            digits=2,
        )
    return drawing
