"""The distances of the heads, and the probes of each layer's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.stats import t

from models.quality.bootstrap import MIN_QUERIES
from models.study.heads import Heads, held_heads
from models.study.inputs import spread_over_queries
from models.study.similarity.distances import Distances, between_heads
from models.study.similarity.probes import ProbeCurve, curves
from models.study.statistics import mean_intervals, permutation_p
from models.study.study import Study

MOST_CLUSTERS = 20
PERMUTATIONS = 999
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Alike:
    """The distances of the heads and their clusters.

    heads: in the order of the matrix. matrix: (heads, heads), the mean Jensen–Shannon distances.
    within, across: the mean distance of two heads of one layer, and of two layers; gap: across − within; each
    with its interval. gap_p: tests the gap against heads dealt to layers at random. by_layer: the mean
    distance within each layer. mean: the mean of all distances. sharing: the share of heads whose nearest
    other head is at less than half that mean, with the interval of `sharing`. tree: scipy's linkage matrix
    (average linkage). clusters: (heads,), numbered from 1. silhouette: that of the clusters, the best of all
    cuts into 2 to MOST_CLUSTERS.
    """

    heads: Heads
    matrix: Floats
    within: tuple[float, float, float]
    across: tuple[float, float, float]
    gap: tuple[float, float, float]
    gap_p: float
    by_layer: dict[int, float]
    mean: float
    sharing: tuple[float, float, float]
    tree: Floats
    clusters: NDArray[np.int64]
    silhouette: float


@dataclass(frozen=True)
class Similarity:
    """The likeness of the heads, and the probes by task. pairs: how many the attention was compared on."""

    alike: Alike
    probes: Mapping[str, ProbeCurve]
    pairs: int


def measure(study: Study) -> Similarity:
    """Compare the heads, and probe the layers."""
    rows = spread_over_queries(study.data.query_of, study.effort.compared_pairs, study.seed)
    heads = held_heads(study.classifier)
    study.progress.start("attention of every two heads", len(rows))
    own = between_heads(study.classifier, study.data, rows, study.progress)
    likeness = alike(own, heads, study)
    return Similarity(likeness, curves(study), len(rows))


def alike(distances: Distances, heads: Heads, study: Study) -> Alike:
    """Return the means within and across layers with intervals over queries, the neighbours and clusters."""
    queries = np.unique(distances.query_of)
    by_query = np.stack(
        [distances.values[distances.query_of == q].mean(0, dtype=np.float64) for q in queries]
    )
    by_query = (by_query + by_query.transpose(0, 2, 1)) / 2
    by_query[:, np.arange(len(heads)), np.arange(len(heads))] = 0
    matrix = by_query.mean(0)
    layers = np.array([layer for layer, _ in heads])
    a, b = np.triu_indices(len(heads), 1)
    same = layers[a] == layers[b]
    pairs = by_query[:, a, b]  # (queries, two heads)
    values = np.stack([_mean(pairs[:, same]), _mean(pairs[:, ~same])], 1)
    values = np.concatenate([values, values[:, 1:] - values[:, :1]], 1)
    low, high = mean_intervals(values, study.resamples, study.seed)
    middle = values.mean(0)
    intervals = [(float(m), float(lo), float(hi)) for m, lo, hi in zip(middle, low, high, strict=True)]
    rng = np.random.default_rng([study.seed, 9])
    flat = matrix[a, b]
    null = []
    for _ in range(PERMUTATIONS):
        dealt = rng.permutation(layers)
        together = dealt[a] == dealt[b]
        null.append(_mean(flat[None, ~together])[0] - _mean(flat[None, together])[0])
    tree = linkage(squareform(matrix, checks=False), "average", optimal_ordering=True)
    clusters, silhouette = _best_cut(matrix, tree)
    by_layer = {
        int(layer): float(flat[same & (layers[a] == layer)].mean())
        for layer in np.unique(layers)
        if (same & (layers[a] == layer)).any()
    }
    return Alike(
        heads,
        matrix,
        intervals[0],
        intervals[1],
        intervals[2],
        permutation_p(intervals[2][0], np.array(null)),
        by_layer,
        float(flat.mean()),
        sharing(by_query),
        tree,
        clusters,
        silhouette,
    )


def sharing(by_query: Floats) -> tuple[float, float, float]:
    """Return the share of heads whose nearest other head is at less than half the mean distance, and its
    interval; the ends are nan if there are fewer than MIN_QUERIES queries.

    by_query: (queries, heads, heads), symmetric. The share leans upward, because noise makes the nearest head
    look nearer. So the interval counts heads that are tested one by one (t-tests over queries, 2.5 %). It
    begins with the share of heads shown to have another one so near (Bonferroni, because any other head will
    do), and ends where all heads are left out that are shown to have none (no correction, because each other
    head must be shown to be further away).
    """
    queries, heads, _ = by_query.shape
    half = by_query.sum((1, 2)) / (heads * (heads - 1)) / 2  # the diagonal is 0
    beyond = by_query - half[:, None, None]
    mean = beyond.mean(0)
    np.fill_diagonal(mean, np.inf)
    value = _below_zero(mean)
    if queries < MIN_QUERIES:
        return value, float("nan"), float("nan")
    error = beyond.std(0, ddof=1) / np.sqrt(queries)
    one, any_other = t.isf((0.025, 0.025 / (heads - 1)), queries - 1)
    return value, _below_zero(mean + any_other * error), _below_zero(mean - one * error)


def _below_zero(beyond: Floats) -> float:
    """Return the share of rows that hold a number below 0."""
    return float((beyond < 0).any(1).mean())


def _mean(values: Floats) -> Floats:
    """Return the mean of each row; nan if the rows are empty."""
    return values.mean(1) if values.shape[1] else np.full(len(values), np.nan)


def _best_cut(matrix: Floats, tree: Floats) -> tuple[NDArray[np.int64], float]:
    """Return the cut into 2 to MOST_CLUSTERS clusters with the largest mean silhouette (Rousseeuw 1987), and
    that silhouette."""
    best, best_value = np.ones(len(matrix), np.int64), -np.inf
    for count in range(2, min(MOST_CLUSTERS, len(matrix) - 1) + 1):
        clusters = fcluster(tree, count, "maxclust").astype(np.int64)
        value = _silhouette(matrix, clusters)
        if value > best_value:
            best, best_value = clusters, value
    return best, float(best_value)


def _silhouette(matrix: Floats, clusters: NDArray[np.int64]) -> float:
    names = np.unique(clusters)
    if len(names) < 2:
        return -np.inf
    member = (clusters[:, None] == names).astype(np.float64)  # (heads, clusters)
    sizes = member.sum(0)
    sums = matrix @ member
    own = np.searchsorted(names, clusters)
    places = np.arange(len(matrix))
    alone = sizes[own] == 1
    inside = sums[places, own] / np.maximum(sizes[own] - 1, 1)
    others = sums / sizes
    others[places, own] = np.inf
    outside = others.min(1)
    scale = np.maximum(np.maximum(inside, outside), np.finfo(np.float64).tiny)
    return float(np.where(alone, 0, (outside - inside) / scale).mean())
