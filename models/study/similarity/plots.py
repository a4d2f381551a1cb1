"""The plots of `similarity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from models.study.plots import LINES, figure
from models.study.similarity.compute import Alike
from models.study.similarity.probes import ProbeCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"word_end": "where words end", "term_overlap": "which terms match", "grade": "the grade"}
SCORES = {"word_end": "AUC", "term_overlap": "AUC", "grade": "Spearman"}


def matrices(alike: Alike) -> Figure:
    """Draw the distance matrix by layer and, beside its tree, in the order of the tree."""
    from scipy.cluster.hierarchy import dendrogram

    drawing, panels = figure(17, 6, columns=3, width_ratios=(1, 1, 0.8))
    tree = dendrogram(alike.tree, no_plot=True)
    orders = (np.arange(len(alike.heads)), np.array(tree["leaves"]))
    top = float(alike.matrix.max())
    for axes, order, title in zip(
        panels[:2], orders, ("heads by layer", "heads in the order of the tree"), strict=True
    ):
        image = axes.imshow(
            alike.matrix[np.ix_(order, order)], cmap="cividis", vmin=0, vmax=top, origin="lower"
        )
        axes.set(title=title)
        axes.grid(False)
    layers = np.array([layer for layer, _ in alike.heads])
    middles = [float(np.flatnonzero(layers == layer).mean()) for layer in np.unique(layers)]
    for axis in (panels[0].xaxis, panels[0].yaxis):
        axis.set_ticks(middles, [str(layer) for layer in np.unique(layers)])
    panels[0].set(xlabel="layer", ylabel="layer")
    panels[1].set(xlabel="place in the tree", ylabel="place in the tree")
    drawing.colorbar(image, ax=panels[1], label="Jensen–Shannon distance", shrink=0.85)
    for x, y in zip(tree["dcoord"], tree["icoord"], strict=True):
        panels[2].plot(x, np.array(y) / 10 - 0.5, color="#333333", lw=0.8)
    panels[2].set(
        xlabel="Jensen–Shannon distance", title="tree (labels: layer)", ylim=(-0.5, len(layers) - 0.5)
    )
    size = 5 if len(layers) > 60 else 8
    panels[2].set_yticks(range(len(layers)), [str(layers[i]) for i in tree["leaves"]], fontsize=size)
    panels[2].grid(False)
    return drawing


def probe_curves(probes: Mapping[str, ProbeCurve]) -> Figure:
    """Draw the score by layer with its band, and the control task dashed; one panel per task."""
    drawing, panels = figure(5 * len(probes), 4.2, columns=len(probes))
    for place, (axes, (name, curve)) in enumerate(zip(np.atleast_1d(panels), probes.items(), strict=True)):
        colour, _, marker = LINES[place]
        layers = np.arange(len(curve.value))
        axes.plot(layers, curve.value, color=colour, marker=marker, label="probe")
        axes.fill_between(layers, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(layers, curve.control, color="#555555", linestyle="--", label="control task")
        names = ["emb.", *(str(layer) for layer in layers[:-1])]
        axes.set_xticks(layers, names, fontsize=9)
        axes.set(title=TITLES[name], xlabel="output of layer", ylabel=SCORES[name])
    np.atleast_1d(panels)[0].legend()
    return drawing
