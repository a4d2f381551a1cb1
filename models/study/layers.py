"""The effect of whole layers off: one at a time, from below and from above; and how much the outputs of later
layers change when the heads of one layer are off."""

from collections.abc import Mapping
from functools import partial
from itertools import product

import numpy as np

from headroom.models.arrays import Floats, Floats32
from headroom.models.quality.metrics import NAMES
from headroom.models.study import plots
from headroom.models.study.page import Figure, Finding, Result, Section, Table
from headroom.models.study.runner import Matrix
from headroom.models.study.states import token_states
from headroom.models.study.statistics import Effect, Family, effects
from headroom.models.study.study import Study
from headroom.models.study.wording import changes_of, layer_range, method, p_value, percent

PAIRS = 400
"""How many pairs the tokens are drawn from."""
TOKENS = 1200
"""How many tokens' states are compared."""
ALIKE = 0.9
"""A linear CKA of at least this counts as "hardly notice"."""


def run(study: Study) -> Result:
    """Switch whole layers off, and measure quality and how much later layers' outputs change.

    `cka` of report.json is (layers, layers): the CKA of each layer's output (column) with and without the
    heads of an earlier layer or its own (row); null where the column's layer is earlier.
    """
    depth = study.shape[0]
    ranges = {
        "alone": [range(layer, layer + 1) for layer in range(depth)],
        "below": [range(layer + 1) for layer in range(depth)],
        "above": [range(layer, depth) for layer in range(depth)],
    }
    families = {
        off: effects(study, [_without(study, layers) for layers in of_family], f"layers off, {off}")
        for off, of_family in ranges.items()
    }
    likeness = _likeness(study)
    alone = families["alone"].effects
    chance = "a random order of the titles"
    if "qwk" in study.measures.names:
        chance += ", or a QWK of 0"
    picture = Figure(
        "layers-off",
        "Quality with whole layers off, with 95 % bands: one layer alone, all from layer 0 up to it, "
        f"all from it to the last. The dashed line is the whole model, the dotted one chance: {chance}.",
        partial(_draw, study, families),
    )
    json = {
        "layers": [
            {"off": off, "layers": layer_range(layers), **one.value, **one.as_json()}
            for off, of_family in ranges.items()
            for layers, one in zip(of_family, families[off].effects, strict=True)
        ],
        "cka": likeness,
    }
    harmless = f"of {depth} layers alone, {families['alone'].claim('layers')}"
    verdict = _verdict(alone, study.measures.main, harmless)
    findings = _findings(study, families["below"].effects, likeness, harmless) if depth > 1 else ()
    section = Section(
        "Whole layers off", (method("layers", study.measures),), (_table(study, alone, likeness),)
    )
    return Result("layers", json, verdict, (section,), picture, findings)


def _verdict(alone: list[Effect], main: str, harmless: str) -> str:
    """Say which layer's heads matter most, if any do. harmless: how many layers can go alone, in words."""
    matter = [layer for layer, one in enumerate(alone) if one.matters]
    if not matter:
        return f"{harmless[0].upper()}{harmless[1:]}."
    worst = min(matter, key=lambda layer: alone[layer].delta[main].value)
    return (
        f"{NAMES[main]} falls most without the heads of layer {worst}: it changes by "
        f"{alone[worst].delta[main].text()}; {harmless}."
    )


def _table(study: Study, alone: list[Effect], likeness: Floats) -> Table:
    rows = tuple(
        (str(layer), *one.cells(), p_value(one.p_change), f"{likeness[layer, -1]:.2f}")
        for layer, one in enumerate(alone)
    )
    header = ("layer off", *changes_of(study.measures), "adjusted p", "last layer's CKA")
    return Table(header, rows, "Each layer's heads off alone.")


def _findings(study: Study, below: list[Effect], likeness: Floats, harmless: str) -> tuple[Finding, ...]:
    """Return the published claims beside our numbers.

    below: the effects of all layers from 0 up to each. harmless: how many layers can go alone, in words.
    """
    depth = len(likeness)
    alike = np.count_nonzero(likeness[:-1, -1] >= ALIKE)
    ours = f"{harmless}; last layer's CKA ≥ {ALIKE} for {alike} of {depth - 1}"
    alone = Finding("A whole layer's heads can go, and later layers hardly notice", "any layer", ours)
    lower = range(depth // 2)
    without_lower = below[lower.stop - 1]
    claim = f"All heads of layers {layer_range(lower)} off destroy the classifier"
    share = study.measures.share
    main = study.measures.main
    relative = percent(without_lower.relative[share].interval())
    ours = f"{NAMES[share]} {relative}, Δ {NAMES[main]} {without_lower.delta[main].text()}"
    return alone, Finding(claim, "−86 % relative accuracy", ours)


def _without(study: Study, layers: range) -> Matrix:
    return study.without(product(layers, range(study.shape[1])))


def _likeness(study: Study) -> Floats:
    """Return `cka` of report.json, at TOKENS tokens of PAIRS pairs."""
    depth = study.shape[0]
    rows = np.random.default_rng([study.seed, 3]).permutation(len(study.data))[:PAIRS]
    encoded = study.encode(np.sort(rows).tolist())
    count = sum(len(pair) for pair in encoded)
    tokens = np.sort(np.random.default_rng([study.seed, 4]).permutation(count)[:TOKENS])
    study.progress.start("outputs of later layers", (1 + depth) * len(encoded))
    _, *intact = token_states(study, encoded, tokens)
    likeness = np.full((depth, depth), np.nan)
    for off in range(depth):
        _, *masked = token_states(study, encoded, tokens, _without(study, range(off, off + 1)))
        for layer in range(off, depth):
            likeness[off, layer] = cka(intact[layer], masked[layer])
    return likeness


def cka(first: Floats32, second: Floats32) -> float:
    """Return the linear centred kernel alignment of two layers' token vectors, (n, d) each (Kornblith et al.
    2019, arXiv:1905.00414); nan if one of them does not vary."""
    left = first - first.mean(0, dtype=np.float64)
    right = second - second.mean(0, dtype=np.float64)
    scale = np.linalg.norm(left.T @ left) * np.linalg.norm(right.T @ right)
    return float(np.square(left.T @ right).sum() / scale) if scale else np.nan


def _draw(study: Study, families: Mapping[str, Family]) -> plots.Drawing:
    drawing, panels = plots.figure(13, 5.2, 1, 2)
    depth = study.shape[0]
    main = study.measures.main
    share = study.measures.share
    first = families["alone"].effects[0]
    base = first.value[main] - first.delta[main].value
    labels = ("this layer alone", "layers 0 to this one", "this layer to the last")
    for line, (family, label) in enumerate(zip(families.values(), labels, strict=True)):
        absolute = [effect.delta[main].interval() for effect in family.effects]
        relative = [effect.relative[share].interval() for effect in family.effects]
        plots.curve(panels[0], range(depth), absolute, line=line, label=label, base=base)
        plots.curve(panels[1], range(depth), relative, line=line, label=label, scale=100)
    titles = (NAMES[main], f"{NAMES[share]}, relative change in %")
    for axes, title, zero in zip(panels, titles, (base, 0.0), strict=True):
        axes.axhline(zero, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        axes.set(title=f"Whole layers off: {title}", xlabel="layer", ylabel=title)
        axes.set_xticks(range(depth))
    plots.random_order(panels[0], study.whole.random_order_ndcg10() if main == "ndcg10" else 0.0)
    panels[0].legend(loc="best")
    return drawing
