"""Draws small line and area charts as inline SVG without scripts or fonts. Colours are CSS classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 860, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 40
LETTER_WIDTH = 7
"""At most, in the mean, of a label in 11.5 pixels; report.css sets that size."""
SHORT_MARK = 8
"""Height of a mark above the frame, where its label has no room."""

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """A named curve; None leaves a gap. colour: the number of a class `c0`, `c1`, … of the page."""

    name: str
    points: Sequence[Point]
    colour: int
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart's frame. log: the vertical axis is logarithmic. ticks: marks of the horizontal axis."""

    title: str
    x_label: str
    y_label: str
    log: bool = False
    ticks: Sequence[tuple[float, str]] | None = None
    marks: Sequence[tuple[float, str]] = field(default_factory=tuple)
    level: tuple[float, str] | None = None


def lines(chart: Chart, curves: Sequence[Line]) -> str:
    """Return a chart of the curves with a legend; each point shows its values as a tooltip."""
    points = [(x, y) for curve in curves for x, y in curve.points if y is not None]
    frame = _Frame(chart, points)
    parts = [frame.grid()]
    for curve in curves:
        for piece in _pieces(curve.points, chart.log):
            path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in piece)
            dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
            parts.append(f'<polyline class="line c{curve.colour}"{dash} points="{path}"/>')
            radius = 3 if curve.dots or len(piece) == 1 else 0
            for x, y in piece if len(piece) <= 400 else ():
                label = f"{curve.name}: {_number(y)} {chart.y_label} at {_number(x)} {chart.x_label}"
                place = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
                dot = f'<circle class="dot c{curve.colour}" r="{radius}" {place}/>'
                target = f'<circle class="target" r="5" {place}/>'
                parts.append(f"<g>{dot if radius else ''}{target}<title>{escape(label)}</title></g>")
    return _figure(chart, "".join(parts), [(curve.name, curve.colour) for curve in curves])


def stack(chart: Chart, xs: Sequence[float], layers: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Return a chart of layers on top of each other, the first at the bottom."""
    totals = [sum(layer[i] for _, layer in layers) for i in range(len(xs))]
    frame = _Frame(chart, list(zip(xs, totals, strict=True)))
    parts = [frame.grid()]
    floor = [0.0] * len(xs)
    for number, (name, layer) in enumerate(layers):
        roof = [low + value for low, value in zip(floor, layer, strict=True)]
        outline = [*zip(xs, roof, strict=True), *reversed(list(zip(xs, floor, strict=True)))]
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in outline)
        mean = sum(layer) / max(1, len(layer))
        parts.append(
            f'<polygon class="area c{number}" points="{path}">'
            f"<title>{escape(name)}: mean {_number(mean)} {escape(chart.y_label)}</title></polygon>"
        )
        floor = roof
    return _figure(chart, "".join(parts), [(name, number) for number, (name, _) in enumerate(layers)])


class _Frame:
    """Maps values to places on the drawing, and draws the axes."""

    def __init__(self, chart: Chart, points: Sequence[tuple[float, float]]) -> None:
        self._chart = chart
        ys = [y for _, y in points if y > 0 or not chart.log] or [1.0]
        if chart.level is not None:
            ys.append(chart.level[0])
        xs = [x for x, _ in points] or [0.0, 1.0]
        self._x0, self._x1 = min(xs), max(max(xs), min(xs) + 1e-9)
        if chart.log:
            self._y0, self._y1 = (
                10 ** math.floor(math.log10(min(ys))),
                10 ** math.ceil(math.log10(max(ys) * 1.001)),
            )
        else:
            self._y0, self._y1 = 0.0, max(max(ys) * 1.08, 1e-9)
        self._scale: Callable[[float], float] = math.log10 if chart.log else float

    def x(self, value: float) -> float:
        return LEFT + (value - self._x0) / (self._x1 - self._x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self._scale(self._y0), self._scale(self._y1)
        share = (self._scale(min(max(value, self._y0), self._y1)) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> str:
        chart, bottom = self._chart, HEIGHT - BOTTOM
        parts = []
        for value in _decades(self._y0, self._y1) if chart.log else _round_steps(0.0, self._y1):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(
                f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">{_number(value)}</text>'
            )
        ticks = chart.ticks or [(v, _number(v)) for v in _round_steps(self._x0, self._x1)]
        for value, label in ticks:
            if self._x0 <= value <= self._x1:
                x = self.x(value)
                parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
                parts.append(_text("tick", "middle", x, bottom + 16, label))
        free = 0.0  # from where on a label does not cover the one before
        for value, label in sorted(chart.marks):
            if self._x0 <= value <= self._x1:
                x = self.x(value)
                fits = free <= x <= WIDTH - len(label) * LETTER_WIDTH
                shown = label if fits else ""
                free = max(free, x + len(shown) * LETTER_WIDTH)
                # Hundreds of long marks would hide the curves.
                begin, end = (TOP, bottom) if fits else (TOP - SHORT_MARK, TOP)
                parts.append(
                    f"<g><title>{escape(label)}</title>"
                    f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{begin}" y2="{end}"/>'
                    f'<text class="tick" x="{x + 3:.1f}" y="{TOP + 10}">{escape(shown)}</text></g>'
                )
        if chart.level is not None:
            y = self.y(chart.level[0])
            parts.append(
                f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="tick" x="{LEFT + 4}" y="{y - 4:.1f}">{escape(chart.level[1])}</text>'
            )
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(_text("tick", "middle", middle, HEIGHT - 6, chart.x_label))
        return "".join(parts)


def _figure(chart: Chart, drawing: str, legend: Sequence[tuple[str, int]]) -> str:
    keys = "".join(
        f'<span class="key"><i class="c{colour}"></i>{escape(name)}</span>' for name, colour in legend
    )
    title = escape(chart.title)
    caption = f"<figcaption><b>{title}</b> <small>{escape(chart.y_label)}</small>{keys}</figcaption>"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{drawing}</svg>'
    return f"<figure>{caption}{svg}</figure>"


def _text(kind: str, anchor: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _pieces(points: Sequence[Point], log: bool) -> list[list[tuple[float, float]]]:
    """Return the parts of a curve between its gaps."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None or (log and y <= 0):
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _round_steps(low: float, high: float) -> list[float]:
    """Return about six round numbers."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / 6
    step = 10 ** math.floor(math.log10(raw))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= raw * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    return [
        f * 10.0**e for e in range(first, last + 1) for f in factors if low <= f * 10.0**e <= high * 1.0001
    ]


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
