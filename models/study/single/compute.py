"""The effect of each head on every metric, when that head alone is off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.study.base import Heads, held_heads, weights_without
from models.study.statistics import (
    Effect,
    Resamples,
    benjamini_hochberg,
    benjamini_hochberg_by_head,
    effect,
    swap_p,
)
from models.study.study import Study


@dataclass(frozen=True)
class SingleHeads:
    """The effect of each head.

    adjusted: (heads,), p-values of any change, adjusted over heads. by_metric: (heads, METRICS), those of
    one metric's change, adjusted over heads.
    """

    heads: Heads
    effects: list[Effect]
    adjusted: NDArray[np.float64]
    by_metric: NDArray[np.float64]


def measure(study: Study) -> SingleHeads:
    """Switch each head off alone and compare the metrics with those of the whole model."""
    heads = held_heads(study.classifier)
    masks = [np.ones(study.shape, np.float32), *(weights_without([head], study.shape) for head in heads)]
    whole, *masked = study.runner.evaluate(masks, "single heads")
    resamples = Resamples(study.data, study.resamples, study.seed)
    base = resamples.draws(whole)
    effects = []
    study.progress.start("intervals of single heads", len(masked))
    for evaluation in masked:
        effects.append(effect(resamples, base, evaluation))
        study.progress.advance()
    p = swap_p(whole, masked, draws=study.effort.permutations, seed=study.seed)
    return SingleHeads(heads, effects, benjamini_hochberg_by_head(p), benjamini_hochberg(p))
