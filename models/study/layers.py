"""The effect of whole layers off: one at a time, from below and from above; and how much the outputs of later
layers change when the heads of one layer are off."""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from models.batch import batches_by_length, pack
from models.masks.head_mask import RowMasks
from models.quality.bootstrap import Floats, Interval
from models.study import plots
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.runner import BATCH_TOKENS, Matrix
from models.study.statistics import Effect, adjusted_p, effects
from models.study.study import Study
from models.study.wording import CHANGES, METHODS, TOO_FEW, layer_range, p_value, percent, signed

PAIRS = 400
"""How many pairs the tokens are drawn from."""
TOKENS = 1200
"""How many tokens' states are compared."""
ALIKE = 0.9
"""A linear CKA of at least this counts as "hardly notice"."""

Floats32 = NDArray[np.float32]


def run(study: Study) -> Result:
    """Switch whole layers off, and measure quality and how much later layers' outputs change.

    `cka` of report.json is (layers, layers): the CKA of each layer's output (column) with and without the
    heads of an earlier layer or its own (row); null where the column's layer is earlier.
    """
    depth = study.shape[0]
    sets = [("alone", range(k, k + 1)) for k in range(depth)]
    sets += [("below", range(k + 1)) for k in range(depth)]
    sets += [("above", range(k, depth)) for k in range(depth)]
    found, p = effects(study, [_without(study, layers) for _, layers in sets], "whole layers")
    # Each of the three questions (alone, from below, from above) is a family of tests of its own.
    adjusted = np.concatenate([adjusted_p(part) for part in np.split(p, 3)])
    likeness = _likeness(study)
    alone, below = found[:depth], found[depth : 2 * depth]
    harmless = sum(effect.is_harmless(study.margin) for effect in alone)
    worst = min(range(depth), key=lambda layer: alone[layer].delta["qwk"].value)
    testable = all(effect.delta["qwk"].testable for effect in alone)
    shown = f"{harmless} of {depth} layers non-inferior (margin {study.margin})" if testable else TOO_FEW
    verdict = (
        f"The heads of layer {worst} cost most: without them QWK changes by "
        f"{signed(alone[worst].delta['qwk'].value)}; {shown}."
    )
    findings = []
    if depth > 1:
        alike = np.count_nonzero(likeness[:-1, -1] >= ALIKE)
        ours = f"{shown}; last layer's CKA ≥ {ALIKE} for {alike} of {depth - 1}"
        findings.append(
            Finding("A whole layer's heads can go, and later layers hardly notice", "any layer", ours)
        )
        half = below[depth // 2 - 1]
        claim = f"All heads of layers {layer_range(range(depth // 2))} off destroy the classifier"
        ours = f"{percent(half.relative['accuracy'].interval())} (QWK {signed(half.value['qwk'])} left)"
        findings.append(Finding(claim, "−86 % relative accuracy", ours))
    rows = tuple(
        (str(layer), *alone[layer].cells(), p_value(adjusted[layer]), f"{likeness[layer, -1]:.2f}")
        for layer in range(depth)
    )
    header = ("layer off", *CHANGES, "adjusted p", "last layer's CKA")
    table = Table(header, rows, "Each layer's heads off alone.")
    section = Section("Whole layers off", (METHODS["layers"],), (table,))
    picture = Figure(
        "layers-off",
        "Quality with whole layers off, with 95 % bands: one layer alone, all from layer 0 up to it, "
        "all from it to the last. The dashed line is the whole model.",
        partial(_draw, depth, found),
    )
    json = {
        "layers": [
            {"off": how, "layers": layer_range(layers), **one.value, **one.as_json(), "p_adjusted": float(p)}
            for (how, layers), one, p in zip(sets, found, adjusted, strict=True)
        ],
        "cka": likeness,
    }
    return Result("layers", json, verdict, (section,), picture, tuple(findings))


def _without(study: Study, layers: range) -> Matrix:
    return study.without([(layer, head) for layer in layers for head in range(study.shape[1])])


def _likeness(study: Study) -> Floats:
    """Return `cka` of report.json."""
    chosen = np.sort(np.random.default_rng([study.seed, 3]).permutation(len(study.data))[:PAIRS])
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in chosen])
    ends = np.cumsum([len(pair) for pair in encoded])
    drawn = np.random.default_rng([study.seed, 4]).permutation(ends[-1])[:TOKENS]
    wanted = np.split(np.isin(np.arange(ends[-1]), drawn), ends[:-1])  # which tokens of each pair
    network = study.classifier.network
    batches = []
    for rows in batches_by_length([len(pair) for pair in encoded], BATCH_TOKENS):
        batch = pack([encoded[i] for i in rows], device=network.device, fill=False)
        tokens = np.flatnonzero(np.concatenate([wanted[rows[i]] for i in batch.order]))
        batches.append((batch, torch.from_numpy(tokens).to(network.device)))

    def outputs(mask: Matrix) -> list[Floats32]:
        """Return what leaves each layer at the drawn tokens, (tokens, D)."""
        selection = network.selector.select(RowMasks(mask))
        states = [list[Floats32]() for _ in network.layers]
        with torch.inference_mode():
            for batch, tokens in batches:
                hidden_states = network.hidden_states(batch, selection, every_token=True)
                next(hidden_states)  # what enters the first layer
                for leaving, x in zip(states, hidden_states, strict=True):
                    leaving.append(x[tokens].float().numpy(force=True))
        study.progress.advance()
        return list(map(np.concatenate, states))

    depth = study.shape[0]
    study.progress.start("outputs of later layers", 1 + depth)
    intact, likeness = outputs(study.without(())), np.full((depth, depth), np.nan)
    for off in range(depth):
        masked = outputs(_without(study, range(off, off + 1)))
        likeness[off, off:] = list(map(cka, intact[off:], masked[off:]))
    return likeness


def cka(first: Floats32, second: Floats32) -> float:
    """Return the linear centred kernel alignment of two layers' token vectors, (n, d) each (Kornblith et al.
    2019, arXiv:1905.00414)."""
    left, right = (x - x.mean(0, dtype=np.float64) for x in (first, second))
    own = np.linalg.norm(left.T @ left) * np.linalg.norm(right.T @ right)
    return float(np.square(left.T @ right).sum() / own)


def _draw(depth: int, found: list[Effect]) -> plots.Drawing:
    drawing, panels = plots.figure(13, 5.2, 1, 2)
    base = found[0].value["qwk"] - found[0].delta["qwk"].value
    for line, label in enumerate(("this layer alone", "layers 0 to this one", "this layer to the last")):
        chosen = found[line * depth : (line + 1) * depth]
        qwk = [effect.delta["qwk"].interval() for effect in chosen]
        qwk = [Interval(base + one.value, base + one.low, base + one.high) for one in qwk]
        accuracy = [effect.relative["accuracy"].interval() for effect in chosen]
        plots.curve(panels[0], range(depth), qwk, line=line, label=label)
        plots.curve(panels[1], range(depth), accuracy, line=line, label=label, scale=100)
    for axes, title, zero in ((panels[0], "QWK", base), (panels[1], "accuracy, relative change in %", 0.0)):
        axes.axhline(zero, color=plots.GREY, ls=(0, (4, 3)), lw=1.2)
        axes.set(title=f"Whole layers off: {title}", xlabel="layer", ylabel=title)
        axes.set_xticks(range(depth))
    panels[0].legend(loc="best")
    return drawing
