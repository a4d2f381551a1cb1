"""The change of the outputs of later layers when the heads of one layer are off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from models.batch import batches_by_length, pack
from models.classifier import Classifier
from models.quality.bootstrap import Floats, Interval, draws
from models.study.statistics import Resamples
from models.study.study import Study

PAIRS = 400
"""How many pairs the tokens are drawn from."""
RESAMPLES = 300


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


def layer_changes(study: Study) -> list[Change]:
    """Switch each layer off and return the changes of its own output and of all later ones."""
    depth = study.shape[0]
    rng = np.random.default_rng([study.seed, 3])
    chosen = np.sort(rng.permutation(len(study.data))[:PAIRS])
    pairs = [study.data.pairs[i] for i in chosen]
    study.progress.start("outputs of later layers", depth + 1)
    states, pair_of_token = outputs(study.classifier, pairs, None, study.effort.tokens, study.seed)
    study.progress.advance()
    resamples = Resamples(study.data, RESAMPLES, study.seed)
    cluster = resamples.cluster_of_query[study.data.query_of[chosen[pair_of_token]]]
    kernels = [_kernel(x) for x in states]
    own = [_alignment(k, k, cluster, resamples.counts) for k in kernels]
    changes = []
    for off in range(depth):
        mask = np.ones(study.shape, np.float32)
        mask[off] = 0
        masked, _ = outputs(study.classifier, pairs, mask, study.effort.tokens, study.seed)
        for later in range(off, depth):
            kernel = _kernel(masked[later])
            cross = _alignment(kernels[later], kernel, cluster, resamples.counts)
            other = _alignment(kernel, kernel, cluster, resamples.counts)
            cka = cross / np.sqrt(own[later] * other)
            cosine = _cosine(states[later], masked[later], cluster, resamples)
            changes.append(Change(off, later, _percentiles(cka), cosine))
        study.progress.advance()
    return changes


def outputs(
    classifier: Classifier,
    pairs: list[tuple[str, str]],
    mask: NDArray[np.float32] | None,
    tokens: int,
    seed: int,
) -> tuple[list[NDArray[np.float32]], NDArray[np.int64]]:
    """Return the output of each layer for tokens drawn at random from the pairs, the same for every mask.

    Returns a matrix (tokens, hidden) for each layer, and the number of each token's pair.
    """
    encoded = classifier.tokenizer.encode(pairs)
    lengths = np.array([len(pair) for pair in encoded])
    total = int(lengths.sum())
    drawn = np.zeros(total, np.bool_)
    drawn[np.random.default_rng([seed, 4]).permutation(total)[:tokens]] = True
    start = np.concatenate(([0], np.cumsum(lengths)))
    parts: list[list[NDArray[np.float32]]] = [[] for _ in range(classifier.num_layers)]
    pair_of = []
    network = classifier.network
    for rows in batches_by_length(lengths.tolist(), 4096):
        batch = pack([encoded[i] for i in rows], device=network.device, fill=False)
        order = [rows[i] for i in batch.order]
        wanted = np.concatenate([drawn[start[i] : start[i + 1]] for i in order])
        pair_of.append(np.repeat(order, lengths[order])[wanted])
        with torch.inference_mode():
            selection = network.selector.select(mask)
            for layer, x in enumerate(network.layer_outputs(network.embed(batch), batch, selection)):
                parts[layer].append(x[torch.from_numpy(wanted)].float().numpy(force=True))
    return [np.concatenate(states) for states in parts], np.concatenate(pair_of)


def _kernel(x: NDArray[np.float32]) -> Floats:
    """Return the linear kernel of token vectors (n, d), scaled to keep sums small: (n, n)."""
    centred: Floats = x.astype(np.float64) - x.mean(0)
    centred /= np.sqrt((centred**2).sum(1).mean())
    return np.asarray(centred @ centred.T)


def _alignment(first: Floats, second: Floats, cluster: NDArray[np.int64], counts: Floats) -> Floats:
    """Return Σ over tokens i, j of w_i w_j K̃_ij L̃_ij for each row of cluster counts, K̃ and L̃ centred under w.

    The sum is expanded, so that a resample costs products of vectors:
    w(K∘L)w − 2/W Σ w_i (Kw)_i (Lw)_i + wKw·wLw/W².
    """
    clusters = counts.shape[1]
    member = np.zeros((len(cluster), clusters))
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


def _cosine(
    first: NDArray[np.float32], second: NDArray[np.float32], cluster: NDArray[np.int64], resamples: Resamples
) -> Interval:
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(1) / norms
    sums = np.bincount(cluster, cosines, resamples.clusters)
    sizes = np.bincount(cluster, minlength=resamples.clusters)
    drawn = draws(lambda counts: {"cosine": counts @ sums / (counts @ sizes)}, resamples.counts)
    return resamples.estimate(drawn["cosine"]).interval()


def _percentiles(values: Floats) -> Interval:
    """Return row 0 with the percentiles of the others; CKA is no function of sums, so it has no standard
    error."""
    low, high = np.quantile(values[1:], (0.025, 0.975))
    return Interval(float(values[0]), float(low), float(high))
