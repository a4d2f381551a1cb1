"""The effect of whole layers off: one at a time, from below and from above."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.study.layers.representations import Change, layer_changes
from models.study.statistics import METRICS, Effect, Resamples, effect, holm, swap_p
from models.study.study import Study


@dataclass(frozen=True)
class Off:
    """A set of whole layers off. how: alone, below (layers 0 to k) or above (k to the last)."""

    how: str
    layers: range
    effect: Effect
    p_adjusted: dict[str, float]


@dataclass(frozen=True)
class WholeLayers:
    """The effects of whole layers.

    sets: each layer alone, then all from below, then all from above. changes: how later layers change.

    accuracy: of the whole model. majority: the accuracy of always answering the commonest grade.
    """

    sets: list[Off]
    changes: list[Change]
    accuracy: float
    majority: float


def measure(study: Study) -> WholeLayers:
    """Switch whole layers off and measure quality and how much the outputs of later layers change."""
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
    p = swap_p(whole, masked, draws=study.effort.permutations, seed=study.seed)
    # Each of the three questions (alone, from below, from above) is a family of tests of its own.
    adjusted = np.concatenate([holm(p[start : start + depth]) for start in range(0, len(sets), depth)])
    results = [
        Off(how, layers, effect(resamples, base, evaluation), dict(zip(METRICS, row.tolist(), strict=True)))
        for (how, layers), evaluation, row in zip(sets, masked, adjusted, strict=True)
    ]
    majority = float(np.bincount(study.data.grade).max() / len(study.data))
    return WholeLayers(results, layer_changes(study), base["accuracy"].values[0], majority)
