"""The plots of `search`: quality by heads kept or by speed, the test on held-out queries, and what stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from models.study.base import Judged
from models.study.plots import BLUE, ORANGE, curve, figure, heat_map
from models.study.search.compute import Found, Point
from models.study.search.noninferiority import TESTED_METRICS
from models.study.statistics import Resamples
from models.study.study import Study
from models.study.wording import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

At = Callable[[Point], float]


def axis_of(study: Study) -> tuple[str, At]:
    """Return the name of the horizontal axis, and where a point stands on it."""
    if not study.by_time:
        return "heads kept", lambda point: float((point.structure.heads > 0).sum())
    return "times as fast as the intact model", speed_of


def speed_of(point: Point) -> float:
    """Return the measured speed of a point, or what was predicted."""
    return point.predicted or 1.0 if point.pace is None else point.pace.speedup.value


def path(found: Found, data: Judged, study: Study) -> Figure:
    """Draw the quality on the search data, one panel per metric."""
    name, at = axis_of(study)
    resamples = Resamples(data, 500, 0)
    drawing, panels = figure(12, 5, columns=2)
    for axes, metric in zip(panels, TESTED_METRICS, strict=True):
        axes.axhline(found.intact.metrics()[metric], color="black", lw=0.8, ls=(0, (1, 1)), label="intact")
        ends = [resamples.estimate(resamples.draws(one.quality)[metric]).interval() for one in found.path]
        curve(axes, [at(one) for one in found.path], ends, line=0, label="smaller networks")
        axes.set(xlabel=name, ylabel=NAMES[metric], title=f"{NAMES[metric]} on the search data")
    _finish(panels, study)
    return drawing


def held_out(found: Found, study: Study) -> Figure:
    """Draw the change on held-out queries with its lower bound, one panel per metric."""
    name, at = axis_of(study)
    drawing, panels = figure(12, 4.8, columns=2)
    x = np.array([at(point) for point in found.path])
    passed = np.array([verdict.passed for verdict in found.verdicts])
    for axes, metric in zip(panels, TESTED_METRICS, strict=True):
        losses = [verdict.losses[metric] for verdict in found.verdicts]
        values, bounds = np.array([one.delta for one in losses]), np.array([one.bound for one in losses])
        axes.axhline(0, color="black", lw=0.8)
        axes.axhline(-study.margin, color=ORANGE, lw=1.2, ls="--", label=f"margin −{study.margin:g}")
        shown = np.isfinite(bounds)
        axes.vlines(x[shown], bounds[shown], values[shown], color=BLUE, lw=1.2)
        axes.plot(x[passed], values[passed], "o", color=BLUE, label="passed")
        axes.plot(x[~passed], values[~passed], "o", color=BLUE, markerfacecolor="white", label="not")
        lowest = min([-study.margin, *bounds[shown].tolist()])
        axes.set_ylim(bottom=max(lowest, -12 * study.margin) * 1.05)  # more would flatten the rest
        title = f"{NAMES[metric]} on held-out queries"
        axes.set(xlabel=name, ylabel=f"change of {NAMES[metric]}", title=title)
    _finish(panels, study)
    return drawing


def _finish(panels: Sequence[Axes], study: Study) -> None:
    """Let both axes run from the intact model to the smallest network, and add the legend."""
    for axes in panels:
        if not study.by_time:
            axes.invert_xaxis()
    panels[0].legend(fontsize=8, loc="lower left")


def kept(point: Point, study: Study) -> Figure:
    """Draw the heads that stay, or the share of each layer's heads and units."""
    config, structure = study.classifier.config, point.structure
    if not study.by_time:
        drawing, axes = figure(7, 5.5)
        heat_map(
            axes, structure.heads, title="heads kept", label="1: kept", signed=False, limits=(0, 1), digits=0
        )
        return drawing
    drawing, axes = figure(8, 4.2)
    layers = np.arange(config.num_layers)
    heads = [len(own) / config.num_heads for own in structure.kept_heads(config)]
    units = [len(own) / width for own, width in zip(structure.kept_units(config), config.widths, strict=True)]
    axes.bar(layers - 0.2, heads, 0.38, color=BLUE, label="heads kept")
    axes.bar(layers + 0.2, units, 0.38, color=ORANGE, hatch="//", edgecolor="white", label="units kept")
    for layer in structure.skipped:
        axes.annotate("gone", (layer, 0.02), ha="center", fontsize=8)
    axes.set(xlabel="layer", ylabel="share that stays", xticks=layers, ylim=(0, 1.05))
    axes.legend(fontsize=9, loc="upper right")
    return drawing
