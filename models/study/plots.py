"""The style of the studies' plots: large enough for talks, safe for colour-blind readers, readable in grey.

Heat maps print the number, with its sign, in every cell; lines differ by dash and marker as well as by
colour. Colours: Okabe and Ito (2008) for lines, ColorBrewer's PuOr for maps of heads.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from headroom.models.arrays import Bools, Floats
from headroom.models.quality.bootstrap import Interval
from headroom.models.study import wording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

Drawing: TypeAlias = "Figure"

BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
GREY = "#555555"
LINES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (GREEN, "-.", "^"))
"""Colour, dash and marker of the first, second and third line of a plot."""

STYLE = Path(__file__).with_name("report.mplstyle")
_MAX_NUMBERS = 200
"""A heat map with more cells than this prints no numbers."""


def figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Drawing, Any]:
    """Return a figure of this size in inches and its rows × columns axes, laid out without overlaps."""
    from headroom.models.picture import Picture

    drawing = Picture(figsize=(width, height), layout="constrained")
    return drawing, drawing.subplots(rows, columns, **options)


def drawn(draw: Callable[[], Drawing]) -> Drawing:
    """Draw a figure in the studies' style."""
    from matplotlib import rc_context

    with rc_context(fname=STYLE):
        return draw()


def svg(draw: Callable[[], Drawing], png: Path | None = None) -> str:
    """Draw a figure and return it as SVG, the same text each time. png: write it there, too."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context(fname=STYLE):
        drawing = draw()
        if png is not None:
            drawing.savefig(png, dpi=160)
        drawing.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def intervals(rows: Mapping[str, Interval], colours: Sequence[str], xlabel: str) -> tuple[Drawing, Axes]:
    """Draw a point with its interval for each row, the first on top. colours: of the rows."""
    drawing, axes = figure(9, 1.2 + 0.45 * len(rows))
    for row, (interval, colour) in enumerate(zip(rows.values(), colours, strict=True)):
        axes.plot([interval.low, interval.high], [row, row], color=colour)
        axes.plot(interval.value, row, "o", color=colour)
    axes.set(xlabel=xlabel, ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), list(rows))
    return drawing, axes


def heat_map(
    axes: Axes,
    shape: tuple[int, int],
    heads: Sequence[tuple[int, int]],
    values: Sequence[float] | Floats,
    framed: Bools,
    title: str,
    label: str,
    digits: int = 1,
) -> None:
    """Draw a number per head as coloured cells (layers, heads) with their numbers; other cells stay empty.

    shape: (layers, heads). The colours are spread evenly around 0; label: what they mean. framed: which heads
    get a frame. Layer 0 is at the top, as on the service's page.
    """
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    cells = np.full(shape, np.nan)
    cells[tuple(np.transpose(heads))] = values
    reach = float(np.abs(cells[np.isfinite(cells)]).max(initial=0)) or 1.0
    image = axes.imshow(cells, cmap=colormaps["PuOr"], vmin=-reach, vmax=reach, aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.9, pad=0.02, label=label)
    bar.outline.set_visible(False)
    axes.set(title=title, xlabel="head", ylabel="layer", xticks=range(shape[1]), yticks=range(shape[0]))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if cells.size <= _MAX_NUMBERS:
        _write_numbers(axes, image, cells, digits)
    for layer, head in np.asarray(heads)[framed]:
        frame = Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, edgecolor="black", lw=2)
        axes.add_patch(frame)


def _write_numbers(axes: Axes, image: AxesImage, cells: Floats, digits: int) -> None:
    for layer, head in np.argwhere(np.isfinite(cells)):
        value = cells[layer, head]
        text = wording.signed(value, digits) if float(f"{value:.{digits}f}") else "0"
        brightness = np.dot(image.to_rgba(value)[:3], (0.299, 0.587, 0.114))
        colour = "white" if brightness < 0.5 else "black"
        axes.text(head, layer, text, ha="center", va="center", fontsize=7.5, color=colour)


def random_order(axes: Axes, ndcg10: float) -> None:
    """Draw the NDCG@10 of a random order, where that is defined."""
    if np.isfinite(ndcg10):
        axes.axhline(ndcg10, color=GREY, ls=":", lw=1.2)


def curve(
    axes: Axes,
    x: Sequence[float],
    changes: Sequence[Interval],
    *,
    line: int,
    label: str,
    base: float = 0.0,
    scale: float = 1,
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> None:
    """Draw base + scale · changes as a line with its band, which ends at the limits.

    line: chooses colour, dash and marker from LINES.
    """
    colour, dash, marker = LINES[line]
    middle, low, high = base + scale * np.array([(one.value, one.low, one.high) for one in changes]).T
    axes.plot(x, middle, dash, color=colour, marker=marker, label=label)
    low, high = np.clip((low, high), *limits)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
