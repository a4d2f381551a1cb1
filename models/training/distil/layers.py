"""The layers that a student keeps of the network that it is cut from."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headroom.models.arrays import Floats
from headroom.models.checkpoint.families import removable_layers
from headroom.models.classifier import Classifier
from headroom.models.terminal import ProgressBar

PAIRS = 128
"""Pairs that a choice looks at."""


def evenly(count: int, kept: int) -> list[int]:
    """Return `kept` of the numbers from 0 to count − 1 at even distances, the first and the last among them,
    as DistilBERT's layers were taken (Sanh et al. 2019, https://arxiv.org/abs/1910.01108)."""
    return sorted(set(np.linspace(0, count - 1, kept).round().astype(int).tolist()))


def chosen(
    clf: Classifier,
    pairs: Sequence[tuple[str, str]],
    kept: int,
    bar: ProgressBar,
) -> list[int]:
    """Return the layers to keep: one after the other goes whose absence changes the scores least.

    Scores are compared by their correlation with those of the whole network, because a student learns its
    scale anew. Layers that the family's format needs stay.
    """
    depth = clf.config.num_layers
    everything = clf.config.intact_mask
    wanted = clf.score(pairs).raw_score
    layers = [*range(depth)]
    removable = removable_layers(clf.config)
    bar.start("choosing layers", sum(len(removable) - gone for gone in range(depth - kept)))
    while len(layers) > kept:
        likeness = dict[int, float]()
        for layer in removable:
            skipped = tuple(each for each in range(depth) if each == layer or each not in layers)
            scores = clf.score(pairs, head_mask=replace(everything, skipped=skipped)).raw_score
            likeness[layer] = correlation(scores, wanted)
            bar.advance()
        least = max(removable, key=likeness.__getitem__)
        layers.remove(least)
        removable.remove(least)
    return layers


def correlation(scores: Floats, wanted: Floats) -> float:
    """Return the correlation of two models' scores, (n,) each; −1 if one gives every pair the same score."""
    if np.ptp(scores) == 0 or np.ptp(wanted) == 0:
        return -1.0
    return float(np.corrcoef(scores, wanted)[0, 1])
