"""The report of `similarity`: JSON, verdict, findings, tables and plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from models.numbers import fixed
from models.study.plots import GREY, curve, figure
from models.study.result import Figure, Finding, Result, Section, Table, in_words
from models.study.similarity.compute import Alike, Similarity
from models.study.similarity.probes import ProbeCurve
from models.study.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TITLES = {"word_end": "where words end", "term_overlap": "which terms match", "grade": "the grade"}
SCORES = {"word_end": "AUC", "term_overlap": "AUC", "grade": "Spearman"}


def result(_: Study, similarity: Similarity) -> Result:
    """Return the report of similarity."""
    alike = similarity.alike
    verdict = (
        f"{alike.sharing:.0%} of the heads have another head at less than half the mean distance; "
        f"two heads of one layer are {alike.within.value:.2f} apart, two of different layers "
        f"{alike.across.value:.2f}."
    )
    picture = Figure(
        "similarity_matrix",
        "Distance of every two heads, by layer; and the same in the order of the tree.",
        lambda: _matrices(alike),
        alt="Two square heat maps of distances between heads.",
    )
    near = f"{alike.sharing:.0%} of the heads have another at less than half the mean distance"
    findings = [Finding("most heads share their pattern", "most", near)]
    if {"word_end", "grade"} <= similarity.probes.keys():
        tops = [
            f"{TITLES[name]} from {_best_layer(similarity.probes[name])}" for name in ("word_end", "grade")
        ]
        findings.append(Finding("syntax low, meaning high", "yes", f"told best: {', '.join(tops)}"))
    sections = (_distance_section(similarity), _probe_section(similarity.probes))
    json = {"similarity": {**vars(alike), "pairs": similarity.pairs}, "probes": similarity.probes}
    return Result("similarity", json, verdict, in_words(findings), sections, tuple(findings), picture)


def _best_layer(curve: ProbeCurve) -> str:
    """Return the layer from which a probe tells most."""
    values = np.array([one.value for one in curve.values])
    return _origin(int(np.nan_to_num(values, nan=-1).argmax()))


def _origin(number: int) -> str:
    return f"layer {number - 1}" if number else "the embeddings"


def _distance_section(similarity: Similarity) -> Section:
    alike = similarity.alike
    rows = [
        ("two heads of one layer", alike.within.text()),
        ("two heads of different layers", alike.across.text()),
        ("difference", alike.gap.text(sign=True)),
        *((f"within layer {layer}", f"{value:.3f}") for layer, value in alike.by_layer.items()),
    ]
    clusters = f"{len(np.unique(alike.clusters))} clusters (silhouette {alike.silhouette:.2f})"
    return Section(
        "Similarity: the heads' patterns",
        (
            "The distance of two heads is the mean over words of √JSD (base 2) between their "
            f"attention, from word to word, on {similarity.pairs} pairs spread over the queries: 0 is "
            "the same attention, 1 has nothing in common. Intervals are bootstraps over queries. "
            f"The tree is average linkage, cut where the mean silhouette is largest: into {clusters}.",
        ),
        (Table(("what", "distance (95 % interval)"), tuple(rows)),),
    )


def _probe_section(probes: Mapping[str, ProbeCurve]) -> Section:
    rows = tuple(
        (TITLES[name], _origin(layer), SCORES[name], one.text(), fixed(control))
        for name, curve in probes.items()
        for layer, (one, control) in enumerate(zip(curve.values, curve.control, strict=True))
    )
    picture = Figure(
        "probes",
        "What a linear probe can tell from each layer's output, with 95 % bands, and its control task.",
        lambda: _probe_curves(probes),
        alt="A panel per task: probe score by layer with a band, and the control task dashed.",
    )
    return Section(
        "Similarity: what each layer can tell",
        (
            "Ridge probes, cross-validated by query in five folds: does the word end with this "
            "token, does the other text hold its word (AUC), and the grade from the first token "
            "(Spearman). Control tasks give each word piece a label drawn once (Hewitt and Liang "
            "2019), or shuffle the grades: what a probe reaches there it knows by heart or by chance.",
        ),
        (Table(("task", "from", "score", "value (95 % interval)", "control"), rows),),
        (picture,) if probes else (),
    )


def _matrices(alike: Alike) -> Drawing:
    """Draw the distance matrix by layer and in the order of the tree."""
    from scipy.cluster.hierarchy import leaves_list

    drawing, panels = figure(14, 6, columns=2)
    top = float(alike.matrix.max())
    layers = np.array([layer for layer, _ in alike.heads])
    for axes, order, title in (
        (panels[0], np.arange(len(layers)), "heads by layer"),
        (panels[1], leaves_list(alike.tree), "heads in the order of the tree"),
    ):
        pixels = alike.matrix[np.ix_(order, order)]
        image = axes.imshow(pixels, cmap="cividis", vmin=0, vmax=top, origin="lower")
        axes.set(title=title)
        axes.grid(False)
    middles = [float(np.flatnonzero(layers == layer).mean()) for layer in np.unique(layers)]
    for axis in (panels[0].xaxis, panels[0].yaxis):
        axis.set_ticks(middles, [str(layer) for layer in np.unique(layers)])
    panels[0].set(xlabel="layer", ylabel="layer")
    panels[1].set(xlabel="index in the tree", ylabel="index in the tree")
    drawing.colorbar(image, ax=panels[1], label="Jensen–Shannon distance", shrink=0.85)
    return drawing


def _probe_curves(probes: Mapping[str, ProbeCurve]) -> Drawing:
    """Draw the score by layer with its band, and the control task dashed; one panel per task."""
    drawing, panels = figure(5 * len(probes), 4.2, columns=len(probes), squeeze=False)
    for number, (axes, (name, one)) in enumerate(zip(panels[0], probes.items(), strict=True)):
        layers = range(len(one.values))
        curve(axes, layers, one.values, line=number, label="probe")
        axes.plot(layers, one.control, color=GREY, linestyle="--", label="control task")
        axes.set_xticks(layers, ["emb.", *map(str, layers[:-1])], fontsize=9)
        axes.set(title=TITLES[name], xlabel="output of layer", ylabel=SCORES[name])
    panels[0][0].legend()
    return drawing
