"""The distances of the heads' attention patterns, their clusters, and the probes of each layer's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import silhouette_score

from models.condense.loss import jensen_shannon
from models.quality.bootstrap import Interval
from models.study.base import Heads, held_heads
from models.study.inputs import spread_over_queries
from models.study.similarity.probes import ProbeCurve, curves
from models.study.statistics import mean_intervals
from models.study.study import Study
from models.study.words import Words

MOST_CLUSTERS = 20
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Alike:
    """The distances of the heads and their clusters.

    heads: in the order of the matrix. matrix: (heads, heads), the mean Jensen–Shannon distances, 0 (same
    attention) to 1 (none in common). within, across: the mean distance of two heads of one layer, and of
    two layers; gap: across − within. by_layer: the mean distance within each layer. mean: of all distances.
    sharing: the share of heads whose nearest other head is at less than half that mean. tree: scipy's
    linkage matrix (average linkage).
    clusters: (heads,), numbered from 1. silhouette: of the clusters, the best of all cuts into 2 to
    MOST_CLUSTERS.
    """

    heads: Heads
    matrix: Floats
    within: Interval
    across: Interval
    gap: Interval
    by_layer: dict[int, float]
    mean: float
    sharing: float
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
    return Similarity(alike(_distances(study, heads, rows), heads, study), curves(study), len(rows))


def between(patterns: NDArray[np.float32]) -> Floats:
    """Return the distances of heads: the mean over words of √JSD (base 2) of what two heads attend to.

    (heads, w, w) → (heads, heads). √JSD is a metric (Endres and Schindelin 2003), and so is its mean over
    words.
    """
    rows = (patterns[:, word] for word in range(patterns.shape[1]))
    return np.asarray(np.mean([jensen_shannon(row[:, None], row[None]) for row in rows], axis=0))


def _distances(study: Study, heads: Heads, rows: list[int]) -> Floats:
    """Return the heads' distances by query: (queries, heads, heads), the means over each query's pairs."""
    clf = study.classifier
    study.progress.start("attention of every two heads", len(rows))
    of_query: dict[int, list[Floats]] = {}
    for row, pair in zip(rows, clf.tokenizer.encode([study.data.pairs[row] for row in rows]), strict=True):
        maps = Words.of(clf.tokenizer, pair).attention(clf.attention(pair, heads), special=True)
        of_query.setdefault(int(study.data.query_of[row]), []).append(between(maps))
        study.progress.advance()
    return np.stack([np.mean(distances, axis=0) for distances in of_query.values()])


def alike(by_query: Floats, heads: Heads, study: Study) -> Alike:
    """Return the means within and across layers with intervals over queries, the neighbours and clusters.

    by_query: (queries, heads, heads), symmetric.
    """
    matrix = by_query.mean(0)
    np.fill_diagonal(matrix, 0)
    layers = np.array([layer for layer, _ in heads])
    a, b = np.triu_indices(len(heads), 1)
    same = layers[a] == layers[b]
    pairs = by_query[:, a, b]  # (queries, two heads)
    inside, outside = _mean(pairs[:, same]), _mean(pairs[:, ~same])
    columns = np.stack([inside, outside, outside - inside], 1)
    within, across, gap = mean_intervals(columns, study.resamples, study.seed)
    flat = matrix[a, b]
    nearest = (matrix + np.diag(np.full(len(heads), np.inf))).min(1)
    tree = linkage(squareform(matrix, checks=False), "average", optimal_ordering=True)
    clusters, silhouette = _best_cut(matrix, tree)
    by_layer = {
        int(layer): float(flat[same & (layers[a] == layer)].mean())
        for layer in np.unique(layers)
        if (same & (layers[a] == layer)).any()
    }
    sharing = float((nearest < flat.mean() / 2).mean())
    return Alike(
        heads, matrix, within, across, gap, by_layer, float(flat.mean()), sharing, tree, clusters, silhouette
    )


def _mean(values: Floats) -> Floats:
    """Return the mean of each row; nan if the rows are empty."""
    return values.mean(1) if values.shape[1] else np.full(len(values), np.nan)


def _best_cut(matrix: Floats, tree: Floats) -> tuple[NDArray[np.int64], float]:
    """Return the cut into 2 to MOST_CLUSTERS clusters with the largest mean silhouette (Rousseeuw 1987),
    and that silhouette."""
    best, best_value = np.ones(len(matrix), np.int64), -np.inf
    for count in range(2, min(MOST_CLUSTERS, len(matrix) - 1) + 1):
        clusters = fcluster(tree, count, "maxclust").astype(np.int64)
        if len(np.unique(clusters)) < 2:
            continue
        value = float(silhouette_score(matrix, clusters, metric="precomputed"))
        if value > best_value:
            best, best_value = clusters, value
    return best, best_value
