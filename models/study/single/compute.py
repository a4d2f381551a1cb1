"""Each head off alone: what is lost, and is it more than chance? (Michel et al. 2019, arXiv:1905.10650)"""

from __future__ import annotations

from dataclasses import dataclass

from models.quality.bootstrap import Floats
from models.study.base import Heads, held_heads, weights_without
from models.study.statistics import (
    Effect,
    benjamini_hochberg,
    benjamini_hochberg_by_head,
    effects,
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
    adjusted: Floats
    by_metric: Floats


def measure(study: Study) -> SingleHeads:
    """Switch each head off alone and compare the metrics with those of the whole model."""
    heads = held_heads(study.classifier)
    masks = [weights_without([head], study.shape) for head in heads]
    found, p, _ = effects(study, masks, "single heads")
    return SingleHeads(heads, found, benjamini_hochberg_by_head(p), benjamini_hochberg(p))
