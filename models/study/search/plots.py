"""The plots of `search`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from models.study.base import Judged, Matrix
from models.study.plots import BLUE, GREEN, ORANGE, PINK, figure
from models.study.search.compute import Candidate, Search
from models.study.search.noninferiority import TESTED_METRICS
from models.study.statistics import Resamples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours; in grey, markers and dashes tell the lines apart.
STYLES = {
    "full Fisher": (BLUE, "o", "-"),
    "full Fisher, tuned": (ORANGE, "s", "-"),
    "diagonal Fisher": (GREEN, "^", "--"),
    "Michel et al. 2019": (PINK, "v", ":"),
    "magnitude": ("#E69F00", "D", "-."),
    "lower layers only": ("#56B4E9", "P", "--"),
    "random": ("#999999", "", "-"),
}
LABELS = {"qwk": "quadratic weighted kappa", "ndcg10": "NDCG@10"}


def path(search: Search, data: Judged) -> Figure:
    """Draw the quality on the search data by heads kept, one panel per metric."""
    resamples = Resamples(data, 500, 0)
    drawing, panels = figure(12, 5, columns=2)
    for axes, metric in zip(panels, TESTED_METRICS, strict=True):
        intact = search.intact.metrics()[metric]
        axes.axhline(intact, color="black", linewidth=0.8, linestyle=(0, (1, 1)))
        axes.annotate("intact", (search.heads, intact), xytext=(0, 4), textcoords="offset points", fontsize=8)
        _random_band(axes, search.baselines, metric)
        for method, (colour, marker, dash) in STYLES.items():
            points = [c for c in (*search.plain, *search.tuned, *search.baselines) if c.method == method]
            if method == "random" or not points:
                continue
            sizes = [c.heads_on for c in points]
            values = [c.quality.metrics()[metric] for c in points]
            axes.plot(sizes, values, color=colour, marker=marker, linestyle=dash, markersize=4, label=method)
            if method == "full Fisher":
                bands = [resamples.estimate(resamples.draws(c.quality)[metric]).interval() for c in points]
                axes.fill_between(
                    sizes,
                    [b.low for b in bands],
                    [b.high for b in bands],
                    color=colour,
                    alpha=0.12,
                    linewidth=0,
                )
        axes.set(xlabel="heads kept", ylabel=LABELS[metric], xlim=(search.heads * 1.02, 0))
    axes.legend(fontsize=8, loc="lower left")
    return drawing


def held_out(search: Search, margin: float) -> Figure:
    """Draw the change on held-out queries with its lower bound, one panel per metric."""
    drawing, panels = figure(12, 4.8, columns=2)
    for axes, metric in zip(panels, TESTED_METRICS, strict=True):
        axes.axhline(0, color="black", linewidth=0.8)
        axes.axhline(-margin, color="black", linewidth=1, linestyle="--")
        label = f"margin −{margin:g}"
        axes.annotate(label, (search.heads, -margin), xytext=(2, -11), textcoords="offset points", fontsize=8)
        shift = max(search.heads / 250, 0.05)
        for path_, verdicts, method, side in (
            (search.plain, search.plain_verdicts, "full Fisher", shift),
            (search.tuned, search.tuned_verdicts, "full Fisher, tuned", -shift),
        ):
            colour, marker, _ = STYLES[method]
            sizes = np.array([c.heads_on for c in path_]) + side
            losses = [verdict.losses[metric] for verdict in verdicts]
            values = np.array([loss.delta for loss in losses])
            axes.vlines(sizes, [loss.bound for loss in losses], values, color=colour, linewidth=1.2)
            passed = np.array([verdict.passed for verdict in verdicts])
            axes.plot(sizes[passed], values[passed], marker, color=colour, label=f"{method}: passed")
            axes.plot(sizes[~passed], values[~passed], marker, color=colour, markerfacecolor="white",
                      label=f"{method}: not")  # fmt: skip
        lowest = min(v.losses[metric].bound for v in (*search.plain_verdicts, *search.tuned_verdicts))
        axes.set(xlabel="heads kept", ylabel=f"change in {LABELS[metric]}", xlim=(search.heads * 1.02, 0))
        axes.set_ylim(bottom=max(lowest, -12 * margin) * 1.05)  # distant failures would flatten the rest
    axes.legend(fontsize=8, loc="lower left")
    return drawing


def masks(weights: Matrix, scales: Matrix | None) -> Figure:
    """Draw the chosen mask and the chosen scales, layers by heads."""
    panels = [("heads kept at run time", weights)]
    if scales is not None:
        panels.append(("tuned scales, folded into W^O", scales))
    layers, heads = weights.shape
    drawing, places = figure(5.6 * len(panels), 1.6 + 3.6 * layers / heads, columns=len(panels))
    for axes, (title, matrix) in zip(np.atleast_1d(places), panels, strict=True):
        image = axes.imshow(
            matrix, cmap="Greys", vmin=0, vmax=max(1.5, float(matrix.max())), aspect="auto", origin="lower"
        )
        axes.set(title=title, xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers))
        if title.startswith("tuned"):
            drawing.colorbar(image, ax=axes, label="scale")
        axes.grid(False)
    return drawing


def _random_band(axes: Axes, baselines: list[Candidate], metric: str) -> None:
    random = [c for c in baselines if c.method == "random"]
    sizes = sorted({c.heads_on for c in random}, reverse=True)
    if not sizes:
        return
    values = [[c.quality.metrics()[metric] for c in random if c.heads_on == size] for size in sizes]
    low, middle, high = (np.array([np.quantile(v, q) for v in values]) for q in (0.05, 0.5, 0.95))
    colour = STYLES["random"][0]
    axes.fill_between(sizes, low, high, color=colour, alpha=0.3, linewidth=0)
    axes.plot(sizes, middle, color=colour, label="random (median, middle 90 %)")
