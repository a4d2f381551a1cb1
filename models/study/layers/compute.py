"""The effect of whole layers off: one at a time, from below and from above; and how much the outputs of later
layers change when the heads of one layer are off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.quality.bootstrap import Floats, Interval, draws
from models.study.gradients import states
from models.study.statistics import METRICS, Effect, Resamples, effects, holm
from models.study.study import Study

PAIRS = 400
"""How many pairs the tokens are drawn from."""
RESAMPLES = 300

Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Off:
    """A set of whole layers off. how: alone, below (layers 0 to k) or above (k to the last)."""

    how: str
    layers: range
    effect: Effect
    p_adjusted: dict[str, float]


@dataclass(frozen=True)
class Change:
    """The likeness of the output of layer `later` with and without the heads of layer `off`; later ≥ off.

    cka: linear centred kernel alignment over tokens (Kornblith et al. 2019, arXiv:1905.00414); cosine: the
    mean cosine between a token's two vectors. 1 is unchanged.
    """

    off: int
    later: int
    cka: Interval
    cosine: Interval


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
    masks = [np.ones(study.shape, np.float32) for _ in sets]
    for mask, (_, layers) in zip(masks, sets, strict=True):
        mask[layers.start : layers.stop] = 0
    found, p, base = effects(study, masks, "whole layers")
    # Each of the three questions (alone, from below, from above) is a family of tests of its own.
    adjusted = np.concatenate([holm(p[start : start + depth]) for start in range(0, len(sets), depth)])
    results = [
        Off(how, layers, effect, dict(zip(METRICS, row.tolist(), strict=True)))
        for (how, layers), effect, row in zip(sets, found, adjusted, strict=True)
    ]
    majority = float(np.bincount(study.data.grade).max() / len(study.data))
    return WholeLayers(results, layer_changes(study), base["accuracy"].values[0], majority)


def layer_changes(study: Study) -> list[Change]:
    """Switch each layer off and return the changes of its own output and of all later ones."""
    depth = study.shape[0]
    rng = np.random.default_rng([study.seed, 3])
    chosen = np.sort(rng.permutation(len(study.data))[:PAIRS])
    encoded = study.classifier.tokenizer.encode([study.data.pairs[i] for i in chosen])
    ends = np.cumsum([len(pair) for pair in encoded])
    tokens = np.random.default_rng([study.seed, 4]).permutation(ends[-1])[: study.effort.tokens]
    wanted = np.split(np.isin(np.arange(ends[-1]), tokens), ends[:-1])
    network = study.classifier.network
    study.progress.start("outputs of later layers", depth + 1)
    order, (_, *intact) = states(network, encoded, wanted)
    study.progress.advance()
    resamples = Resamples(study.data, RESAMPLES, study.seed)
    pair_of_token = np.repeat(order, [wanted[i].sum() for i in order])
    cluster = resamples.cluster_of_query[study.data.query_of[chosen[pair_of_token]]]
    kernels = [_kernel(x) for x in intact]
    own = [_alignment(k, k, cluster, resamples.counts) for k in kernels]
    changes = []
    for off in range(depth):
        mask = np.ones(study.shape, np.float32)
        mask[off] = 0
        _, (_, *masked) = states(network, encoded, wanted, mask)
        for later in range(off, depth):
            kernel = _kernel(masked[later])
            cross = _alignment(kernels[later], kernel, cluster, resamples.counts)
            other = _alignment(kernel, kernel, cluster, resamples.counts)
            cka = cross / np.sqrt(own[later] * other)
            # CKA is no function of sums over queries, so it has percentiles and no standard error.
            low, high = np.quantile(cka[1:], (0.025, 0.975))
            cosine = _cosine(intact[later], masked[later], cluster, resamples)
            changes.append(Change(off, later, Interval(float(cka[0]), float(low), float(high)), cosine))
        study.progress.advance()
    return changes


def _kernel(x: Floats32) -> Floats:
    """Return the linear kernel of token vectors (n, d), scaled to keep sums small: (n, n)."""
    centred: Floats = x.astype(np.float64) - x.mean(0)
    centred /= np.sqrt((centred**2).sum(1).mean())
    return np.asarray(centred @ centred.T)


def _alignment(first: Floats, second: Floats, cluster: Ints, counts: Floats) -> Floats:
    """Return Σ over tokens i, j of w_i w_j K̃_ij L̃_ij for each row of cluster counts, K̃ and L̃ centred under w.

    The sum is expanded, so that a resample costs products of vectors:
    w(K∘L)w − 2/W Σ w_i (Kw)_i (Lw)_i + wKw·wLw/W².
    """
    member = np.zeros((len(cluster), counts.shape[1]))
    member[np.arange(len(cluster)), cluster] = 1
    product = member.T @ (first * second) @ member  # (clusters, clusters)
    weights = counts[:, cluster]  # (resamples, n)
    total = weights.sum(1)
    left, right = weights @ first, weights @ second
    return np.asarray(
        ((counts @ product) * counts).sum(1)
        - 2 * (weights * left * right).sum(1) / total
        + (weights * left).sum(1) * (weights * right).sum(1) / total**2
    )


def _cosine(first: Floats32, second: Floats32, cluster: Ints, resamples: Resamples) -> Interval:
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(1) / norms
    sums = np.bincount(cluster, cosines, resamples.clusters)
    sizes = np.bincount(cluster, minlength=resamples.clusters)
    drawn = draws(lambda counts: {"cosine": counts @ sums / (counts @ sizes)}, resamples.counts)
    return resamples.estimate(drawn["cosine"]).interval()
