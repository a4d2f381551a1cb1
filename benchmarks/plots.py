"""Draws the plots of benchmarks/results from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks import document
from benchmarks.checkpoints import WORKLOADS

# Okabe and Ito's blue and a light orange, which colour-blind people and black-and-white prints keep apart.
OURS, PEER = "#0072B2", "#F0B45A"
Bar = tuple[str, float, str]
"""Name, value, and the text at its end."""


def draw(results: dict[str, Any], directory: Path) -> list[Path]:
    """Draw a PNG file for each section that has results; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for section, file in (("engines", "engines.png"), ("engines-amx", "engines-amx.png")):
        if section in results:
            drawn += [engines(results[section]["rows"], directory / file)]
    if "servers" in results:
        drawn.append(servers(results["servers"]["rows"], directory / "servers.png"))
    return drawn


def engines(rows: list[dict[str, Any]], file: Path) -> Path:
    """Draw the pairs per second of every engine, with one panel per shape and workload."""
    panels = []
    for shape, workload in dict.fromkeys((row["shape"], row["workload"]) for row in rows):
        bars: list[Bar] = []
        for row in rows:
            if (row["shape"], row["workload"]) == (shape, workload):
                share = "" if row["share_of_limit"] is None else f" ({row['share_of_limit']:.0%})"
                bars.append((row["engine"], row["pairs_per_second"], f"{row['pairs_per_second']:.0f}{share}"))
        panels.append((f"{shape}\n{WORKLOADS[workload]}", bars))
    return _panels(panels, "pairs per second (share of the run's bf16 GEMM limit)", file)


def servers(rows: list[dict[str, Any]], file: Path) -> Path:
    """Draw the pairs per second of every saturated server, with one panel per shape."""
    panels = []
    for shape in dict.fromkeys(row["shape"] for row in rows):
        bars = [
            (row["server"], row["pairs_per_second"], f"{row['pairs_per_second']:.0f}")
            for row in rows
            if row["shape"] == shape
        ]
        panels.append((f"{shape}\nover HTTP, 20 titles a request, saturated", bars))
    return _panels(panels, "pairs per second", file)


def _panels(panels: Sequence[tuple[str, Sequence[Bar]]], label: str, file: Path) -> Path:
    bar_count = max(len(bars) for _, bars in panels)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(7 * columns, (0.36 * bar_count + 1.2) * rows),
        squeeze=False,
        layout="constrained",
    )
    for place, axis in enumerate(axes.flat):
        if place < len(panels):
            _bars(axis, *panels[place], label)
        else:
            axis.axis("off")
    figure.savefig(file, dpi=110)
    plt.close(figure)
    return file


def _bars(axis: Axes, title: str, bars: Sequence[Bar], label: str) -> None:
    bars = sorted(bars, key=lambda bar: bar[1])
    for place, (name, value, text) in enumerate(bars):
        ours = name.startswith(("ours", "headroom"))
        axis.barh(place, value, color=OURS if ours else PEER, edgecolor="black", linewidth=0.5)
        axis.annotate(text, (value, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(range(len(bars)), [name for name, _, _ in bars], fontsize=8)
    axis.set_xlim(0, 1.22 * max(value for _, value, _ in bars))
    axis.set_xlabel(label, fontsize=9)
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    for path in draw(document.read(), document.RESULTS):
        print(path)
