"""The plots of `similarity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from models.study.plots import GREY, curve, figure
from models.study.similarity.compute import Alike
from models.study.similarity.probes import ProbeCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"word_end": "where words end", "term_overlap": "which terms match", "grade": "the grade"}
SCORES = {"word_end": "AUC", "term_overlap": "AUC", "grade": "Spearman"}


def matrices(alike: Alike) -> Figure:
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


def probe_curves(probes: Mapping[str, ProbeCurve]) -> Figure:
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
