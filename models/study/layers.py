"""The effect of whole layers off: one at a time, from below and from above; and how much the outputs of later
layers change when the heads of one layer are off."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.quality.bootstrap import Floats, Interval
from models.study import plots
from models.study.gradients import states
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.statistics import Effect, adjusted_p, effects
from models.study.study import Study
from models.study.wording import CHANGES, TOO_FEW, layer_range, p_value, percent, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

PAIRS = 400
"""How many pairs the tokens are drawn from."""
TOKENS = 1200
"""How many tokens' states are compared."""
ALIKE = 0.9
"""A linear CKA of at least this counts as "hardly notice"."""

Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class Off:
    """A set of whole layers off. how: alone, below (layers 0 to k) or above (k to the last)."""

    how: str
    layers: range
    effect: Effect
    p_adjusted: float


def _effects(study: Study) -> list[Off]:
    """Switch each layer off alone, then all from below, then all from above."""
    depth = study.shape[0]
    sets = [("alone", range(k, k + 1)) for k in range(depth)]
    sets += [("below", range(k + 1)) for k in range(depth)]
    sets += [("above", range(k, depth)) for k in range(depth)]
    masks = [np.ones(study.shape, np.float32) for _ in sets]
    for mask, (_, layers) in zip(masks, sets, strict=True):
        mask[layers.start : layers.stop] = 0
    found, p = effects(study, masks, "whole layers")
    # Each of the three questions (alone, from below, from above) is a family of tests of its own.
    adjusted = np.concatenate([adjusted_p(part) for part in np.split(p, 3)])
    return [Off(*one, effect, float(own)) for one, effect, own in zip(sets, found, adjusted, strict=True)]


def layer_likeness(study: Study) -> Floats:
    """Return the CKA of each layer's output (column) with and without the heads of an earlier layer or its
    own (row), (layers, layers): 1 is the same. nan if the column's layer is earlier."""
    depth = study.shape[0]
    chosen = np.sort(np.random.default_rng([study.seed, 3]).permutation(len(study.data))[:PAIRS])
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in chosen])
    ends = np.cumsum([len(pair) for pair in encoded])
    tokens = np.random.default_rng([study.seed, 4]).permutation(ends[-1])[:TOKENS]
    wanted = np.split(np.isin(np.arange(ends[-1]), tokens), ends[:-1])
    network = study.classifier.network
    study.progress.start("outputs of later layers", depth + 1)
    _, (_, *intact) = states(network, encoded, wanted)
    study.progress.advance()
    likeness: Floats = np.full((depth, depth), np.nan)
    for off in range(depth):
        mask = np.ones(study.shape, np.float32)
        mask[off] = 0
        _, (_, *masked) = states(network, encoded, wanted, mask)
        for later in range(off, depth):
            likeness[off, later] = cka(intact[later], masked[later])
        study.progress.advance()
    return likeness


def cka(first: Floats32, second: Floats32) -> float:
    """Return the linear centred kernel alignment of two layers' token vectors, (n, d) each (Kornblith et al.
    2019, arXiv:1905.00414)."""
    left, right = (x - x.mean(0, dtype=np.float64) for x in (first, second))
    own = np.linalg.norm(left.T @ left) * np.linalg.norm(right.T @ right)
    return float(np.square(left.T @ right).sum() / own)


def run(study: Study) -> Result:
    """Switch whole layers off, and measure quality and how much the outputs of later layers change."""
    depth = study.shape[0]
    sets = _effects(study)
    likeness = layer_likeness(study)
    alone = sets[:depth]
    harmless = sum(off.effect.is_harmless(study.margin) for off in alone)
    worst = min(alone, key=lambda off: off.effect.delta["qwk"].value)
    testable = all(off.effect.delta["qwk"].testable for off in alone)
    shown = f"{harmless} of {depth} layers non-inferior (margin {study.margin})" if testable else TOO_FEW
    verdict = (
        f"The heads of layer {worst.layers.start} cost most: without them QWK changes by "
        f"{signed(worst.effect.delta['qwk'].value)}; {shown}."
    )
    picture = Figure(
        "layers-off",
        "Quality with whole layers off, with 95 % bands: one layer alone, all from layer 0 up to it, "
        "all from it to the last. The dashed line is the whole model.",
        partial(_curves, depth, sets),
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
            for off in sets
        ],
        "cka": likeness,
    }
    sections, findings = (_section(study, sets, likeness),), _findings(sets, likeness, shown)
    return Result("layers", json, verdict, sections, picture, findings)


def _findings(sets: list[Off], likeness: Floats, shown: str) -> tuple[Finding, ...]:
    """Return what was published of whole layers, beside our numbers. A model of one layer has neither."""
    depth = len(likeness)
    if depth == 1:
        return ()
    alike = np.count_nonzero(likeness[:-1, -1] >= ALIKE)
    ours = f"{shown}; last layer's CKA ≥ {ALIKE} for {alike} of {depth - 1}"
    half = range(depth // 2)
    effect = next(off.effect for off in sets if (off.how, off.layers) == ("below", half))
    loss = f"{percent(effect.relative['accuracy'].interval())} (QWK {signed(effect.value['qwk'])} left)"
    destroyed = f"All heads of layers {layer_range(half)} off destroy the classifier"
    return (
        Finding("A whole layer's heads can go, and later layers hardly notice", "any layer", ours),
        Finding(destroyed, "−86 % relative accuracy", loss),
    )


def _section(study: Study, sets: list[Off], likeness: Floats) -> Section:
    rows = tuple(
        (str(layer), *off.effect.cells(), p_value(off.p_adjusted), f"{likeness[layer, -1]:.2f}")
        for layer, off in enumerate(sets[: len(likeness)])
    )
    header = ("layer off", *CHANGES, "adjusted p")
    return Section(
        "Whole layers off",
        (
            "p-values come from a paired permutation test over queries "
            f"({study.effort.permutations:,} draws). A layer's p combines its metrics (Bonferroni) and is "
            "adjusted over the layers by Benjamini–Hochberg. A layer is non-inferior if one-sided tests "
            f"show that accuracy, QWK and NDCG@10 each fall by less than {study.margin} (5 % each; "
            "all must pass). CKA, of a sample of tokens, says how alike the last layer's output stays: 1 is "
            "unchanged; report.json has that of every later layer.",
        ),
        (Table((*header, "last layer's CKA"), rows, "Each layer's heads off alone."),),
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
