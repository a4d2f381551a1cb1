"""The style of the studies' plots: large enough for talks, safe for colour-blind readers, readable in grey.

Heat maps print the number, with its sign, in every cell; lines differ by dash and marker as well as by
colour. Colours: Okabe and Ito (2008) for lines, ColorBrewer's PuOr for maps of heads.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.quality.bootstrap import Interval
from models.study import wording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555"
LINES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"), (PINK, ":", "D"))
"""Colour, dash and marker of the first, second, third and fourth line of a plot."""

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "lines.linewidth": 2.2,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "headroom",
}
DPI = 160
_MAX_NUMBERS = 200
"""A heat map with more cells than this prints no numbers."""


def figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure of this size in inches and its rows × columns axes, laid out without overlaps."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(rc=STYLE):  # type: ignore[arg-type]  # the stubs list every key
        drawing = Figure(figsize=(width, height), layout="constrained")
        axes = drawing.subplots(rows, columns, **options)
    return drawing, axes


def svg(draw: Callable[[], Figure], png: Path | None = None) -> str:
    """Draw a figure and return it as SVG, the same text each time. png: write it there, too."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(rc=STYLE):  # type: ignore[arg-type]  # the stubs list every key
        drawing = draw()
        if png is not None:
            drawing.savefig(png, dpi=DPI)
        drawing.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def heat_map(
    axes: Axes,
    values: NDArray[np.floating],
    *,
    title: str,
    label: str,
    marked: NDArray[np.bool_] | None = None,
    digits: int = 1,
) -> None:
    """Draw a number per head (layers, heads) as coloured cells with their numbers; nan cells stay empty.

    The colours are spread evenly around 0; label: what they mean. marked: cells that get a frame. Layer 0 is
    at the top, as on the service's page.
    """
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    reach = float(np.abs(values[np.isfinite(values)]).max(initial=0)) or 1.0
    image = axes.imshow(values, cmap=colormaps["PuOr"], vmin=-reach, vmax=reach, aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)
    axes.set(title=title, xlabel="head", ylabel="layer")
    axes.set_xticks(range(values.shape[1]))
    axes.set_yticks(range(values.shape[0]))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for (row, column), value in np.ndenumerate(values) if values.size <= _MAX_NUMBERS else ():
        if np.isfinite(value):
            text = wording.signed(value, digits) if float(f"{value:.{digits}f}") else "0"
            shade = np.asarray(image.cmap(image.norm(value)))[:3] @ (0.299, 0.587, 0.114)
            colour = "white" if shade < 0.5 else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour)
    for row, column in np.argwhere(marked) if marked is not None else ():
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", lw=2))


def curve(
    axes: Axes, x: Sequence[float], values: Sequence[Interval], *, line: int, label: str, scale: float = 1
) -> None:
    """Draw a line with its band; `line` chooses colour, dash and marker from LINES."""
    colour, dash, marker = LINES[line % len(LINES)]
    middle, low, high = (
        [scale * end for end in ends]
        for ends in zip(*((one.value, one.low, one.high) for one in values), strict=True)
    )
    axes.plot(x, middle, dash, color=colour, marker=marker, label=label)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
