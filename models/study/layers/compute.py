"""Whole layers off: one at a time, from below, from above, and what the later layers notice of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.quality.bootstrap import Interval
from models.study import claims, plots
from models.study.base import Figure, Finding, Result, Section, Study, Table
from models.study.layers.representations import Change, layer_changes
from models.study.statistics import METRICS, Effect, Resamples, effect, holm, swap_p
from models.study.wording import NAMES, layer_range, p_value, percent, signed, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

LEVEL = 0.05
PUBLISHED_LOSS = -0.86
"""Relative accuracy with all heads of layers 0–5 off, in the source study."""
ALIKE = 0.9
"""A linear CKA from here on counts as "hardly notice"."""


@dataclass(frozen=True)
class Off:
    """A set of whole layers off. how: alone, below (layers 0 to k) or above (k to the last)."""

    how: str
    layers: range
    effect: Effect
    p_adjusted: dict[str, float]


def run(study: Study) -> Result:
    """Effects of whole layers, and linear CKA and cosine of what later layers put out."""
    depth = study.shape[0]
    sets = [("alone", range(k, k + 1)) for k in range(depth)]
    sets += [("below", range(k + 1)) for k in range(depth)]
    sets += [("above", range(k, depth)) for k in range(depth)]
    masks = [np.ones(study.shape, np.float32) for _ in range(1 + len(sets))]
    for mask, (_, layers) in zip(masks[1:], sets, strict=True):
        mask[layers.start : layers.stop] = 0
    whole, *masked = study.runner.evaluate(masks, "whole layers")
    resamples = Resamples(study.data, study.resamples, study.seed)
    base = resamples.draws(whole)
    p = swap_p(resamples, whole, masked, draws=study.effort.permutations, seed=study.seed)
    # Three questions, three families: each layer, from below, from above.
    adjusted = np.concatenate([holm(p[start : start + depth]) for start in range(0, len(sets), depth)])
    found = [
        Off(how, layers, effect(resamples, base, evaluation), dict(zip(METRICS, row.tolist(), strict=True)))
        for (how, layers), evaluation, row in zip(sets, masked, adjusted, strict=True)
    ]
    return _result(study, found, layer_changes(study), base["accuracy"].values[0])


def _result(study: Study, sets: list[Off], changes: list[Change], accuracy: float) -> Result:
    depth = study.shape[0]
    alone = sets[:depth]
    harmless = [one for one in alone if _is_harmless(one, study.margin)]
    worst = min(alone, key=lambda one: one.effect.delta["qwk"].value)
    last = [change for change in changes if change.later == depth - 1 and change.off < depth - 1]
    text = (
        f"Of {depth} layers whose heads were switched off one at a time, {len(harmless)} are shown to "
        f"cost less than {study.margin} in accuracy, QWK and NDCG@10 ({_layers(harmless)}). The costliest "
        f"is layer {worst.layers.start}: ΔQWK {with_interval(worst.effect.delta['qwk'].interval())}."
    )
    findings = []
    if last:
        lowest = min(last, key=lambda change: change.cka.value)
        alike = [change for change in last if change.cka.low >= ALIKE]
        text += (
            f" The last layer's output keeps a linear CKA of at least {ALIKE} with its own without the "
            f"change for {len(alike)} of the {len(last)} earlier layers; the lowest is "
            f"{lowest.cka.value:.2f} ({lowest.cka.low:.2f} to {lowest.cka.high:.2f}), with layer "
            f"{lowest.off} off."
        )
        gone = len(harmless) > depth / 2
        noticed = len(alike) > len(last) / 2
        findings.append(
            Finding(
                "A whole layer's heads can go, and later layers hardly notice",
                "any layer",
                f"{len(harmless)} of {depth} layers non-inferior (margin {study.margin}); last layer's "
                f"CKA ≥ {ALIKE} for {len(alike)} of {len(last)}",
                gone and noticed if gone == noticed else None,
                "Counted as replicated where both hold for more than half of the layers"
                + ("." if gone == noticed else "; here one does and the other does not."),
                claims.DEPTH,
            )
        )
    halves = [
        one
        for one in sets
        if one.how in ("below", "above") and one.layers in (range(depth // 2), range(depth // 2, depth))
    ]
    if len(halves) == 2:
        sentence, finding = _half(halves[0], halves[1], accuracy, _majority(study))
        text += " " + sentence
        findings.append(finding)
    return Result("layers", _json(sets, changes), text, (_section(study, sets, changes),), tuple(findings))


def _half(lower: Off, upper: Off, accuracy: float, majority: float) -> tuple[str, Finding]:
    losses = [one.effect.relative["accuracy"].interval() for one in (lower, upper)]
    names = [layer_range(one.layers) for one in (lower, upper)]
    floor = majority / accuracy - 1
    sentence = (
        f"All heads of layers {names[0]} off: accuracy {percent(losses[0])} relative, QWK "
        f"{with_interval(lower.effect.delta['qwk'].interval())}; layers {names[1]}: {percent(losses[1])}, "
        f"QWK {with_interval(upper.effect.delta['qwk'].interval())}."
    )
    half = PUBLISHED_LOSS / 2
    replicates = True if losses[0].high < half else False if losses[0].low > half else None
    return sentence, Finding(
        f"All heads of layers {names[0]} off destroy the classifier",
        f"{signed(PUBLISHED_LOSS * 100, 0)} % relative accuracy",
        f"{percent(losses[0])} (QWK {signed(lower.effect.value['qwk'])} left)",
        replicates,
        "Counted as replicated where at least half of the published loss is shown. Always answering the "
        f"commonest grade would change accuracy by {signed(floor * 100, 0)} % here, so accuracy has "
        "little further to fall; QWK, 0 for such answers, says more.",
        claims.DEPTH,
    )


def _section(study: Study, sets: list[Off], changes: list[Change]) -> Section:
    depth = study.shape[0]
    rows = []
    for one in sets:
        if one.how == "alone":
            cells = [with_interval(one.effect.delta[name].interval()) for name in METRICS]
            p = min(one.p_adjusted.values())
            rows.append(
                (
                    str(one.layers.start),
                    *cells,
                    p_value(p),
                    "yes" if _is_harmless(one, study.margin) else "no",
                )
            )
    header = ("layer off", *(f"Δ {NAMES[name]}" for name in METRICS), "adjusted p", f"within {study.margin}")
    figures = [
        Figure(
            "layers-off",
            "Quality with whole layers off, with 95 % bands: one layer alone, all from layer 0 up to it, "
            "all from it to the last. The dashed line is the whole model.",
            partial(_curves, depth, sets),
            "Curves of QWK and relative accuracy against the layer.",
        )
    ]
    if changes:
        figures.append(
            Figure(
                "layers-noticed",
                "How alike each later layer's output stays when one layer's heads are off: linear CKA "
                "(left) and mean cosine of the token vectors (right); 1 is unchanged.",
                partial(_noticed, depth, changes),
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


def _is_harmless(one: Off, margin: float) -> bool:
    return all(one.effect.delta[name].p_above(-margin) <= LEVEL for name in ("accuracy", "qwk", "ndcg10"))


def _majority(study: Study) -> float:
    """The accuracy of always answering the commonest grade."""
    return float(np.bincount(study.data.grade).max() / len(study.data))


def _layers(sets: list[Off]) -> str:
    return ", ".join(str(one.layers.start) for one in sets) or "none"


def _json(sets: list[Off], changes: list[Change]) -> dict[str, Any]:
    rows = []
    for one in sets:
        intervals = {name: one.effect.delta[name].interval() for name in METRICS}
        rows.append(
            {
                "off": one.how,
                "layers": layer_range(one.layers),
                **one.effect.value,
                "delta": {name: found.value for name, found in intervals.items()},
                "interval": {name: [found.low, found.high] for name, found in intervals.items()},
                "relative": {name: one.effect.relative[name].value for name in METRICS},
                "p_adjusted": one.p_adjusted,
            }
        )
    noticed = [
        {"off": c.off, "later": c.later, "cka": _plain(c.cka), "cosine": _plain(c.cosine)} for c in changes
    ]
    return {"layers": rows, "noticed": noticed}


def _plain(found: Interval) -> dict[str, float]:
    return {"value": found.value, "low": found.low, "high": found.high}


def _curves(depth: int, sets: list[Off]) -> Drawing:
    drawing, axes = plots.figure(13, 5.2, 1, 2)
    labels = {"alone": "this layer alone", "below": "layers 0 to this one", "above": "this layer to the last"}
    base = sets[0].effect.value["qwk"] - sets[0].effect.delta["qwk"].value
    for line, how in enumerate(labels):
        chosen = [one for one in sets if one.how == how]
        qwk = [one.effect.delta["qwk"].interval() for one in chosen]
        accuracy = [one.effect.relative["accuracy"].interval() for one in chosen]
        for area, found, offset, factor in ((axes[0], qwk, base, 1), (axes[1], accuracy, 0, 100)):
            plots.curve(
                area,
                list(range(depth)),
                [offset + f.value * factor for f in found],
                [offset + f.low * factor for f in found],
                [offset + f.high * factor for f in found],
                line=line,
                label=labels[how],
            )
    for area, title, zero in ((axes[0], "QWK", base), (axes[1], "accuracy, relative change in %", 0.0)):
        area.axhline(zero, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        area.set(title=f"Whole layers off: {title}", xlabel="layer", ylabel=title)
        area.set_xticks(range(depth))
    axes[0].legend(loc="best")
    return drawing


def _noticed(depth: int, changes: list[Change]) -> Drawing:
    drawing, axes = plots.figure(15, 6, 1, 2)
    for area, name in zip(axes, ("cka", "cosine"), strict=True):
        values: NDArray[np.float64] = np.full((depth, depth), np.nan)
        for change in changes:
            values[change.off, change.later] = getattr(change, name).value
        title = "linear CKA" if name == "cka" else "mean cosine"
        plots.heat_map(
            area,
            values,
            title=f"Output with one layer off: {title}",
            label=title,
            x="layer looked at",
            y="layer whose heads are off",
            signed=False,
            limits=(min(0.5, float(np.nanmin(values))), 1),
            digits=2,
        )
    return drawing
