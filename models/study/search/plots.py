"""The plots of `search`: what each smaller network loses, and which heads stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.study.plots import BLUE, ORANGE, figure, heat_map
from models.study.search.compute import Found, Point
from models.study.search.noninferiority import TESTED_METRICS
from models.study.study import Study
from models.study.wording import NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEEPEST = 12
"""A plot reaches down to a loss of so many margins: a larger one would flatten the rest."""


def changes(found: Found, study: Study) -> Figure:
    """Draw the change on held-out queries with its lower bound, or without them on the search data, one panel
    per metric; the intact model is on the left."""
    drawing, panels = figure(12, 4.8, columns=2, sharex=True)
    x = np.array([point.mask.heads_on for point in found.path], np.float64)
    if study.by_time:
        x = np.array([point.pace.speedup.value for point in found.path if point.pace is not None])
    passed = np.array([verdict.passed for verdict in found.verdicts], np.bool_)
    for axes, metric in zip(panels, TESTED_METRICS, strict=True):
        axes.axhline(0, color="black", lw=0.8)
        axes.axhline(-study.margin, color=ORANGE, lw=1.2, ls="--", label=f"margin −{study.margin:g}")
        if found.verdicts:
            losses = [verdict.losses[metric] for verdict in found.verdicts]
            values, bounds = np.array([one.delta for one in losses]), np.array([one.bound for one in losses])
            shown = np.isfinite(bounds)
            axes.vlines(x[shown], bounds[shown], values[shown], color=BLUE, lw=1.2)
            axes.plot(x[passed], values[passed], "o", color=BLUE, label="passed")
            axes.plot(
                x[~passed], values[~passed], "o", color=BLUE, markerfacecolor="white", label="not passed"
            )
            lowest = min([*values, *bounds[shown]])
        else:
            before = found.intact.metrics()[metric]
            values = np.array([point.quality.metrics()[metric] - before for point in found.path])
            axes.plot(x, values, "o-", color=BLUE, label="smaller networks")
            lowest = values.min()
        axes.set_ylim(bottom=1.05 * max(min(lowest, -study.margin), -DEEPEST * study.margin))
        axes.set(
            xlabel="times as fast as the intact model" if study.by_time else "heads kept",
            ylabel=f"change of {NAMES[metric]}",
            title=f"{NAMES[metric]} on {'held-out queries' if found.verdicts else 'the search data'}",
        )
    if not study.by_time:
        panels[0].invert_xaxis()
    panels[0].legend(fontsize=8, loc="best")
    return drawing


def kept(point: Point) -> Figure:
    """Draw the heads that stay."""
    drawing, axes = figure(7, 5.5)
    heat_map(axes, point.mask.matrix, title="1: the head stays", signed=False, limits=(0, 1), digits=0)
    return drawing
