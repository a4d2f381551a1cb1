"""Draws the report's charts as SVG in the page's own colours, which are others in dark mode."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.report import Report

INK, RULE, MARK = "#010203", "#010204", "#010205"
LINES = tuple(f"#0102{number:02x}" for number in range(16, 22))
PAGE = {INK: "soft", RULE: "rule", MARK: "c4"} | {line: f"c{number}" for number, line in enumerate(LINES)}
"""The variable of report.css that stands for each colour of a drawing."""

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


def charts(report: Report) -> list[Markup]:
    """Return the drawings of a run that there are data for."""
    windows, events = report["series"]["windows"], report["events"]
    inside = [window for window in windows if window["at"] < report["seconds"]]
    objective = report["objective"]
    bound = None if objective is None else objective["bound_ms"]
    marks = [event["at"] for event in events]
    drawn = []
    if capacity := report.get("find_max"):
        lines = {name: [point[f"{name}_ms"] for point in capacity["curve"]] for name in ("p50", "p90", "p99")}
        rates = [point["rate"] for point in capacity["curve"]]
        best = [capacity["rate"]] if capacity["rate"] else []
        labels = ("Latency against rate", "requests/s", "ms")
        drawn.append(_svg(labels, _lines(rates, lines, "o-"), log=True, marks=best, level=bound))
    if inside:
        at = [window["at"] for window in inside]
        lines = {name: [window[name] for window in inside] for name in ("p50", "p90", "p99", "max")}
        labels = ("Latency over time, by intended send time", "s", "ms")
        drawn.append(_svg(labels, _lines(at, lines), log=True, marks=marks))
    if report["spectrum"]:
        drawn.append(_spectrum(report["spectrum"], bound))
    if windows:
        width = report["series"]["window_seconds"]
        lines = {
            "intended": [window["intended"] for window in windows],
            "answered": [window["achieved"] for window in windows],
            "errors": [window["errors"] / width for window in windows],
        }
        labels = ("Rate achieved against intended", "s", "requests/s")
        drawn.append(_svg(labels, _lines([window["at"] for window in windows], lines), marks=marks))
    if len(inside) > 1 and report["stages_ms"]:
        drawn.append(_stages(inside, list(report["stages_ms"]), marks))
    return drawn


def _spectrum(points: Sequence[tuple[float, float]], bound: float | None) -> Markup:
    nines = [-math.log10(max(1e-9, 1 - percent / 100)) for percent, _ in points]

    def draw(axes: Axes) -> None:
        axes.plot(nines, [ms for _, ms in points], color=LINES[0], label="latency")
        last = math.ceil(nines[-1] - 1e-6)
        ticks = {0.0: "0", math.log10(2): "50", 1.0: "90"}
        ticks |= {float(n): "99" if n == 2 else "99." + "9" * (n - 2) for n in range(2, last + 1)}
        axes.set_xticks(list(ticks), list(ticks.values()))

    return _svg(
        ("Percentile spectrum", "percentile (logarithmic in nines)", "ms"), draw, log=True, level=bound
    )


def _stages(windows: list[dict[str, Any]], stages: list[str], marks: Sequence[float]) -> Markup:
    """Draw the server's stages of a request (`Server-Timing`) on top of each other, and the rest."""
    names = [name for name in stages if name != "total"]
    means = [window["stages_mean_ms"] for window in windows]
    layers = {name: [mean.get(name, 0.0) for mean in means] for name in names}
    known = [sum(layer) for layer in zip(*layers.values(), strict=True)] or [0.0] * len(windows)
    if "total" in stages:
        totals = [mean.get("total", 0.0) for mean in means]
        layers["rest of the server"] = [max(0.0, t - k) for t, k in zip(totals, known, strict=True)]
        pairs = zip(windows, totals, strict=True)
        layers["outside the server"] = [max(0.0, w["mean"] - total) if total else 0.0 for w, total in pairs]

    def draw(axes: Axes) -> None:
        at = [window["at"] for window in windows]
        axes.stackplot(at, *layers.values(), labels=list(layers), colors=LINES, alpha=0.8)

    labels = ("Mean latency by the server's stages (Server-Timing)", "s", "ms")
    return _svg(labels, draw, marks=marks)


def _lines(
    x: Sequence[float], lines: dict[str, list[float | None]], style: str = "-"
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for (name, values), colour in zip(lines.items(), LINES, strict=False):
            y = [math.nan if value is None else value for value in values]
            axes.plot(x, y, style, color=colour, label=name, linewidth=1.5, markersize=4)

    return draw


def _svg(
    labels: tuple[str, str, str],
    draw: Callable[[Axes], None],
    *,
    log: bool = False,
    marks: Sequence[float] = (),
    level: float | None = None,
) -> Markup:
    """Return a drawing. labels: title and axes. marks: of the horizontal axis. level: of the vertical one."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 2.9))
        axes = figure.subplots(gridspec_kw={"left": 0.08, "right": 0.97, "bottom": 0.16, "top": 0.9})
        draw(axes)
        title, x, y = labels
        axes.set(xlabel=x, ylabel=y)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        else:
            axes.set_ylim(bottom=0)
        for mark in marks:
            axes.axvline(mark, color=MARK, linewidth=0.8, linestyle=":")
        if level is not None:
            axes.axhline(level, color=MARK, linestyle="--", label="objective")
        axes.legend(loc="upper right", bbox_to_anchor=(1, 1.15), ncols=7)
        stream = io.StringIO()
        none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=none)
    text = stream.getvalue()
    for colour, variable in PAGE.items():
        text = text.replace(colour, f"var(--{variable})")
    return Markup("<figcaption>{}</figcaption>{}").format(title, Markup(text[text.index("<svg") :]))
