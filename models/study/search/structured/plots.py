"""The plots of a search by time: quality against measured speed, and what was removed layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.study.base import Judged
from models.study.plots import BLUE, GREEN, ORANGE, PINK, figure
from models.study.search.noninferiority import TESTED_METRICS
from models.study.search.structured.compute import MAGNITUDE, OURS, RANDOM, TOP, TUNED, Found, Point
from models.study.statistics import Resamples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = {
    OURS: (BLUE, "o", "-"),
    TUNED: (ORANGE, "s", "-"),
    TOP: (GREEN, "^", "--"),
    MAGNITUDE: (PINK, "v", ":"),
    RANDOM: ("#999999", "x", ":"),
}
LABELS = {"qwk": "quadratic weighted kappa", "ndcg10": "NDCG@10"}


def path(found: Found, data: Judged) -> Figure:
    """Draw the quality on the search data by speed, one panel per metric."""
    resamples = Resamples(data, 500, 0)
    drawing, panels = figure(12, 5, columns=2)
    for axes, metric in zip(panels, TESTED_METRICS, strict=True):
        axes.axhline(found.intact.metrics()[metric], color="black", linewidth=0.8, linestyle=(0, (1, 1)))
        for method, (colour, marker, dash) in STYLES.items():
            points = [p for p in (*found.path, *found.tuned, *found.baselines) if p.method == method]
            if not points:
                continue
            speeds = [_speed(point) for point in points]
            values = [point.quality.metrics()[metric] for point in points]
            line = "" if method == RANDOM else dash
            axes.plot(speeds, values, color=colour, marker=marker, linestyle=line, markersize=5, label=method)
            if method == OURS:
                bands = [resamples.estimate(resamples.draws(p.quality)[metric]).interval() for p in points]
                low, high = [b.low for b in bands], [b.high for b in bands]
                axes.fill_between(speeds, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.set(xlabel="times as fast as the intact model", ylabel=LABELS[metric])
    panels[0].legend(fontsize=8, loc="lower left")
    return drawing


def held_out(found: Found, margin: float) -> Figure:
    """Draw the change on held-out queries by measured pairs per second, one panel per metric."""
    drawing, panels = figure(12, 4.8, columns=2)
    for axes, metric in zip(panels, TESTED_METRICS, strict=True):
        axes.axhline(0, color="black", linewidth=0.8)
        axes.axhline(-margin, color="black", linewidth=1, linestyle="--")
        lowest = -margin
        for path_, verdicts, method, side in (
            (found.path, found.verdicts, OURS, 1.0),
            (found.tuned, found.tuned_verdicts, TUNED, 1.015),
        ):
            if not path_:
                continue
            colour, marker, _ = STYLES[method]
            rates = np.array([point.pace.pairs_per_second if point.pace else 0.0 for point in path_]) * side
            losses = [verdict.losses[metric] for verdict in verdicts]
            values, bounds = np.array([o.delta for o in losses]), np.array([o.bound for o in losses])
            axes.vlines(rates, bounds, values, color=colour, linewidth=1.2)
            passed = np.array([verdict.passed for verdict in verdicts])
            axes.plot(rates[passed], values[passed], marker, color=colour, label=f"{method}: passed")
            axes.plot(rates[~passed], values[~passed], marker, color=colour, markerfacecolor="white",
                      label=f"{method}: not")  # fmt: skip
            lowest = min(lowest, float(bounds.min()))
        if found.intact_pace is not None:
            axes.axvline(found.intact_pace.pairs_per_second, color="black", linewidth=0.8, linestyle=":")
        axes.set(xlabel="pairs per second on one thread", ylabel=f"change in {LABELS[metric]}")
        axes.set_ylim(bottom=max(lowest, -12 * margin) * 1.05)
    panels[0].legend(fontsize=8, loc="lower left")
    return drawing


def removed(found: Found, point: Point) -> Figure:
    """Draw the share of each layer's heads and units that stays."""
    config = found.planner.config
    heads, units = point.structure.kept_heads(config), point.structure.kept_units(config)
    layers = np.arange(config.num_layers)
    drawing, axes = figure(8, 4.2)
    axes.bar(
        layers - 0.2, [len(kept) / config.num_heads for kept in heads], 0.38, color=BLUE, label="heads kept"
    )
    axes.bar(
        layers + 0.2,
        [len(kept) / width for kept, width in zip(units, config.widths, strict=True)],
        0.38, color=ORANGE, hatch="//", edgecolor="white", label="units kept",
    )  # fmt: skip
    for layer in sorted(point.structure.skipped):
        axes.annotate("gone", (layer, 0.02), ha="center", fontsize=8)
    axes.set(xlabel="layer", ylabel="share that stays", xticks=layers, ylim=(0, 1.05))
    axes.legend(fontsize=9, loc="upper right")
    return drawing


def _speed(point: Point) -> float:
    return point.predicted if point.pace is None else point.pace.speedup
