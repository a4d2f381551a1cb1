"""The distances of the heads' attention patterns, within layers and across them, and their clusters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from models.condense.loss import jensen_shannon
from models.numbers import percent
from models.quality.bootstrap import Floats
from models.study.base import Heads, held_heads
from models.study.inputs import spread_over_queries
from models.study.plots import figure
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.statistics import mean_intervals
from models.study.study import Study
from models.study.words import Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NEAR = 0.5
"""Heads share their pattern if they are closer than this share of the mean distance."""


def run(study: Study) -> Result:
    """Compare the attention of every two heads; intervals are over queries.

    `similarity` of report.json holds: heads, in the order of the matrix; matrix, the mean Jensen–Shannon
    distances, 0 (same attention) to 1 (none in common); within, across: the mean distance of two heads of one
    layer, and of two layers; gap: across − within; sharing: the share of heads that share their pattern with
    another; clusters, by average linkage: the tree is cut where heads no longer share their pattern; pairs:
    how many pairs the attention was compared on.
    """
    rows = spread_over_queries(study.data.query_of, study.effort.compared_pairs, study.seed)
    heads = held_heads(study.classifier)
    by_query = _distances(study, heads, rows)
    matrix = by_query.mean(0)
    np.fill_diagonal(matrix, 0)
    layers = np.array([layer for layer, _ in heads])
    a, b = np.triu_indices(len(heads), 1)
    same = layers[a] == layers[b]
    pairs = by_query[:, a, b]  # (queries, two heads)
    inside, outside = _mean(pairs[:, same]), _mean(pairs[:, ~same])
    columns = np.stack([inside, outside, outside - inside], 1)
    within, across, gap = mean_intervals(columns, study.effort.resamples, study.seed)
    flat = matrix[a, b]
    near = NEAR * flat.mean()
    nearest = (matrix + np.diag(np.full(len(heads), np.inf))).min(1)
    clusters = fcluster(linkage(squareform(matrix, checks=False), "average"), near, "distance")
    sharing = float((nearest < near).mean())
    shared = f"{percent(sharing)} of the heads have another at less than half the mean distance"
    verdict = (
        f"{shared}; two heads of one layer are {within.value:.2f} apart, two of different layers "
        f"{across.value:.2f}."
    )
    finding = Finding("most heads share their pattern", "most", shared)
    table = (
        ("two heads of one layer", within.text()),
        ("two heads of different layers", across.text()),
        ("difference", gap.text(sign=True)),
    )
    section = Section(
        "Similarity: the heads' patterns",
        (
            "The distance of two heads is the mean over words of √JSD (base 2) between their "
            f"attention, from word to word, on {len(rows)} pairs spread over the queries: 0 is "
            "the same attention, 1 has nothing in common. Intervals are bootstraps over queries. The tree "
            "is average linkage; cut at half the mean distance it has "
            f"{clusters.max()} clusters of the {len(heads)} heads.",
        ),
        (Table(("what", "distance (95 % interval)"), table),),
    )
    picture = Figure(
        "similarity_matrix",
        "Distance of every two heads, by layer: dark heads attend alike.",
        partial(_matrix, layers, matrix),
    )
    content = {
        "heads": heads, "matrix": matrix, "within": within, "across": across, "gap": gap,
        "sharing": sharing, "clusters": clusters, "pairs": len(rows),
    }  # fmt: skip
    return Result("similarity", {"similarity": content}, verdict, (section,), picture, (finding,))


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


def _mean(values: Floats) -> Floats:
    """Return the mean of each row; nan if the rows are empty."""
    return values.mean(1) if values.shape[1] else np.full(len(values), np.nan)


def _matrix(layers: NDArray[np.int64], matrix: Floats) -> Drawing:
    """Draw the distance matrix by layer."""
    drawing, axes = figure(8, 6.5)
    image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=float(matrix.max()))
    axes.set(title="heads by layer", xlabel="layer", ylabel="layer")
    axes.grid(False)
    middles = [float(np.flatnonzero(layers == layer).mean()) for layer in np.unique(layers)]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(middles, [str(layer) for layer in np.unique(layers)])
    drawing.colorbar(image, ax=axes, label="Jensen–Shannon distance", shrink=0.85)
    return drawing
