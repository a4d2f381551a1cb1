"""`report.html`: one file without scripts that loads nothing else.

Its charts are SVG in the page's own colours, which are others in dark mode.
"""

import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from numpy.typing import NDArray

from headroom.loadtest import tables
from headroom.loadtest.histogram import Histogram
from headroom.loadtest.report import Report, verdict

Values = NDArray[Any]

INK = "#010203"
RULE = "#010204"
MARK = "#010205"
LINES = tuple(f"#0102{number:02x}" for number in range(16, 22))
PAGE = {INK: "soft", RULE: "rule", MARK: "c4"} | {line: f"c{number}" for number, line in enumerate(LINES)}
"""The page's variable that stands for each colour of a drawing."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "grid.color": RULE,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


def render(report: Report) -> str:
    """Return the page of one run."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    )
    environment.filters["ms"] = lambda value: f"{tables.number(value)} ms"
    environment.filters["plain"] = lambda value: (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        verdict=verdict(report),
        good=report["valid"],
        charts=charts(report),
        tables=tables,
        stages={name: round(times["mean"], 3) for name, times in report["stages_ms"].items()},
    )


def charts(report: Report) -> list[Markup]:
    """Return the drawings of a run that there are data for."""
    windows = report["series"]["windows"]
    marks = [event["at"] for event in report["events"]]
    inside = [window for window in windows if window["at"] < report["seconds"]]
    bound = report["objective"] and report["objective"]["bound_ms"]
    drawn: list[Markup] = []
    if capacity := report.get("find_max"):
        best = [capacity["rate"]] if capacity["rate"] else []
        with _chart(drawn, "Latency against rate", "requests/s", "ms", log=True, marks=best) as axes:
            _lines(axes, capacity["curve"], "rate", ("p50_ms", "p90_ms", "p99_ms"), marker="o")
            _level(axes, bound)
    if inside:
        title = "Latency over time, by intended send time"
        with _chart(drawn, title, "s", "ms", log=True, marks=marks) as axes:
            _lines(axes, inside, "at", ("p50", "p90", "p99", "max"))
    latency, counts = Histogram.decode(report["histograms"]["latency"]).counts()
    if len(latency):
        percentiles = "percentile (logarithmic in nines)"
        with _chart(drawn, "Percentile spectrum", percentiles, "ms", log=True) as axes:
            _spectrum(axes, latency, counts)
            _level(axes, bound)
    if windows:
        width = report["series"]["window_seconds"]
        rates = [{**window, "errors": window["errors"] / width} for window in windows]
        with _chart(drawn, "Rate achieved against intended", "s", "requests/s", marks=marks) as axes:
            _lines(axes, rates, "at", ("intended", "achieved", "errors"))
    return drawn


@contextmanager
def _chart(
    drawn: list[Markup], title: str, x: str, y: str, *, log: bool = False, marks: Sequence[float] = ()
) -> Iterator[Axes]:
    """Yield the axes to draw on, and append the drawing to `drawn`. marks: of the horizontal axis."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 2.9))
        axes = figure.subplots(gridspec_kw={"left": 0.08, "right": 0.97, "bottom": 0.16, "top": 0.9})
        yield axes
        axes.set(xlabel=x, ylabel=y)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(LogFormatter())  # "200", not a power of ten
        else:
            axes.set_ylim(bottom=0)
        for mark in marks:
            axes.axvline(mark, color=MARK, linewidth=0.8, linestyle=":")
        axes.legend(loc="upper right", bbox_to_anchor=(1, 1.15), ncols=7)
        stream = io.StringIO()
        none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=none)
    text = stream.getvalue()
    for colour, variable in PAGE.items():
        text = text.replace(colour, f"var(--{variable})")
    drawn.append(Markup("<figcaption>{}</figcaption>{}").format(title, Markup(text[text.index("<svg") :])))


def _lines(
    axes: Axes, points: Sequence[dict[str, Any]], x: str, names: Sequence[str], marker: str = ""
) -> None:
    """Draw a line for each name; a value that is None leaves a gap."""
    for name, colour in zip(names, LINES, strict=False):
        values = np.array([point[name] for point in points], dtype=float)
        label = name.removesuffix("_ms")
        axes.plot([p[x] for p in points], values, marker=marker, markersize=4, color=colour, label=label)


def _level(axes: Axes, bound: float | None) -> None:
    if bound is not None:
        axes.axhline(bound, color=MARK, linestyle="--", label="objective")


def _spectrum(axes: Axes, latency: Values, counts: Values) -> None:
    """Draw latency by percentile, evenly spaced in nines, so that p0, p90 and p99 are equally far apart."""
    above = 1 - (np.cumsum(counts) - counts / 2) / np.sum(counts)
    axes.plot(-np.log10(above), latency, color=LINES[0], label="latency")
    ticks = {0.0: "0", math.log10(2): "50", 1.0: "90"}
    last = math.ceil(-math.log10(above[-1]))
    ticks |= {float(n): "99" if n == 2 else "99." + "9" * (n - 2) for n in range(2, last + 1)}
    axes.set_xticks(list(ticks), list(ticks.values()))
