"""The distances of the heads' attention patterns, within layers and across them, and their clusters; and what
each layer's output can tell."""

from collections import defaultdict
from functools import partial

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from headroom.models.arrays import Floats, Ints
from headroom.models.condense.search import jensen_shannon
from headroom.models.quality.bootstrap import MIN_QUERIES, Interval, draws, resample
from headroom.models.quality.evaluation import intervals_of
from headroom.models.study import plots, probes
from headroom.models.study.page import Figure, Finding, Result, Section, Table
from headroom.models.study.statistics import mean_intervals
from headroom.models.study.study import Study
from headroom.models.study.wording import method, share_text
from headroom.models.study.words import Words

NEAR = 0.5
"""Heads share their pattern if they are closer than this share of the mean distance."""


def run(study: Study) -> Result:
    """Compare the attention of every two heads; intervals are over queries.

    `similarity` of report.json holds the mean Jensen–Shannon distances, from 0 (same attention) to 1 (none in
    common): matrix, of every two heads; within, across: of two heads of one layer, and of two layers; gap:
    across − within; sharing: the share of heads that share their pattern with another, with
    sharing_interval; and clusters, by average linkage: the tree is cut where heads no longer share their
    pattern. `probes` has the linear probes of each layer's output.
    """
    chosen = study.data.spread(study.effort.compared_pairs, study.seed)
    by_query = _distances(study, chosen)
    matrix = by_query.mean(0)
    np.fill_diagonal(matrix, 0)
    layers = np.array([layer for layer, _ in study.heads])
    within, across, gap = mean_intervals(
        _within_and_across(by_query, layers), study.effort.resamples, study.seed
    )
    distances = squareform(matrix, checks=False)
    near = NEAR * distances.mean()
    sharing = _sharing_interval(study, by_query)
    clusters = fcluster(linkage(distances, "average"), near, "distance")
    shared = f"{share_text(sharing)} of the heads have another at less than half the mean distance"
    verdict = (
        f"{shared}; two heads of one layer are {within.text(2)} apart, two of different layers "
        f"{across.text(2)}."
    )
    rows = _rows(within, across, gap, clusters)
    caption = f"On {len(chosen)} pairs spread over the queries."
    table = Table(("what", "distance (95 % interval)"), rows, caption)
    section = Section("Similarity: the heads' patterns", (method("similarity", study.measures),), (table,))
    picture = Figure(
        "similarity_matrix",
        "Distance of every two heads, by layer: dark heads attend alike.",
        partial(_draw, layers, matrix),
    )
    content = {
        "heads": study.heads, "matrix": matrix, "within": within, "across": across, "gap": gap,
        "sharing": sharing.value, "sharing_interval": sharing.ends, "clusters": clusters,
        "pairs": len(chosen),
    }  # fmt: skip
    finding = Finding("most heads share their pattern", "most", shared)
    probed = probes.probe(study)
    return Result(
        "similarity",
        {"similarity": content, "probes": probes.as_json(probed)},
        f"{verdict} Probes: {probes.claim(probed)}.",
        (section, probes.section(study, probed)),
        picture,
        (finding, probes.finding(probed)),
    )


def _rows(within: Interval, across: Interval, gap: Interval, clusters: Ints) -> tuple[tuple[str, str], ...]:
    return (
        ("two heads of one layer", within.text()),
        ("two heads of different layers", across.text()),
        ("difference", gap.text(sign=True)),
        ("clusters of heads, by average linkage", f"{clusters.max()} of {len(clusters)} heads"),
    )


def _sharing_interval(study: Study, by_query: Floats) -> Interval:
    """Return the share of heads that share their pattern with another, with its interval over queries.

    by_query: (queries, heads, heads).
    """
    heads = by_query.shape[1]
    flat = by_query.reshape(len(by_query), -1)
    upper = np.triu_indices(heads, 1)

    def sharing(counts: Floats) -> dict[str, Floats]:
        shares = []
        for of_resample in counts:
            matrix = (of_resample @ flat / of_resample.sum()).reshape(heads, heads)
            near = NEAR * matrix[upper].mean()
            np.fill_diagonal(matrix, np.inf)
            shares.append((matrix.min(1) < near).mean())
            study.progress.advance()
        return {"sharing": np.array(shares)}

    counts = resample(len(by_query), study.effort.resamples, study.seed)
    study.progress.start("interval of the shared patterns", len(counts) + len(by_query))
    if len(by_query) < MIN_QUERIES:
        return Interval(float(sharing(counts[:1])["sharing"][0]), np.nan, np.nan)
    drawn = draws(sharing, counts, lambda _: len(by_query))
    return intervals_of(drawn, counts)["sharing"]


def _within_and_across(by_query: Floats, layers: Ints) -> Floats:
    """Return each query's mean distance of two heads of one layer, of two of different layers, and the
    difference: (queries, 3). by_query: (queries, heads, heads). layers: of the heads."""
    first, second = np.triu_indices(len(layers), 1)
    same = layers[first] == layers[second]
    means = [
        by_query[:, first[pairs], second[pairs]].mean(1) if pairs.any() else np.full(len(by_query), np.nan)
        for pairs in (same, ~same)
    ]
    return np.stack([*means, means[1] - means[0]], 1)


def _distances(study: Study, rows: list[int]) -> Floats:
    """Return the heads' distances by query, (queries, heads, heads): of each pair the mean over words of √JSD
    (base 2), then the mean over the query's pairs.

    √JSD is a metric (Endres and Schindelin 2003), and so is its mean over words.
    """
    clf = study.classifier
    of_query = defaultdict[int, list[Floats]](list)
    pairs = study.stage("attention of every two heads", study.encode(rows))
    for query, pair in zip(study.data.query_of[rows].tolist(), pairs, strict=True):
        maps = Words.of(clf.tokenizer, pair).attention(clf.attention_maps(pair, study.heads), special=True)
        by_word = [jensen_shannon(word[:, None], word[None]) for word in maps.swapaxes(0, 1)]
        of_query[query].append(np.mean(by_word, axis=0))
    return np.stack([np.mean(distances, axis=0) for distances in of_query.values()])


def _draw(layers: Ints, matrix: Floats) -> plots.Drawing:
    """Draw the distance matrix by layer."""
    drawing, axes = plots.figure(8, 6.5)
    image = axes.imshow(matrix, cmap="cividis", vmin=0, vmax=float(matrix.max()))
    axes.set(title="heads by layer", xlabel="layer", ylabel="layer")
    axes.grid(False)
    middles = [float(np.flatnonzero(layers == layer).mean()) for layer in np.unique(layers)]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(middles, [str(layer) for layer in np.unique(layers)])
    drawing.colorbar(image, ax=axes, label="Jensen–Shannon distance", shrink=0.85)
    return drawing
