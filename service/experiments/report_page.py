"""An experiment's report to share: one HTML file with the verdict, the intervals drawn, and tables."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from html import escape
from typing import Any

from models.numbers import number, percent
from models.study import page
from models.study.result import Section, Table

VERDICTS = {"ship": "Ship", "stop": "Stop", "wait": "Wait", "invalid": "Not valid"}
METHOD = (
    "The intervals are confidence sequences: all of them hold together at every time, so one may look as "
    "often as one likes and stop at any look.",
    "The margin is how much worse than control is still good enough. An arm is good enough once its whole "
    "interval is on the better side of the margin. The first metric decides.",
)
WIDTH, ROW, LEFT, RIGHT = 880, 58, 330, 30


def html(experiment: dict[str, Any]) -> str:
    """Return the report. experiment: an answer of /v1/experiments/{name}.

    Raises RuntimeError if it holds no analysis.
    """
    report = experiment.get("report")
    if report is None:
        raise RuntimeError("there is no analysis at present: the service cannot reach its database")
    units = sum(report["exposures"].values())
    moment = datetime.fromtimestamp(report["time"], UTC)
    conclusion = (
        f"{units:,} of {report['planned_units']:,} planned units, on {moment:%Y-%m-%d at %H:%M} UTC. "
    )
    caption = "Each metric against control: the interval, 0 (no change) and the margin (dashed)."
    metrics = [metric for arm in report["arms"] for metric in arm["metrics"]]
    return page.html(
        {"intervals": _drawing(metrics)},
        title=f"Experiment {experiment['name']}",
        verdict=f"{VERDICTS[report['recommendation']]}: {report['text']}",
        conclusion=conclusion + report["sample_ratio"]["text"],
        picture={"name": "intervals", "caption": caption} if metrics else None,
        sections=(
            _arms(report),
            _effects(metrics),
            _shadow(report),
            _log(experiment),
            Section("Method", METHOD),
        ),
    )


def _arms(report: dict[str, Any]) -> Section:
    rows = tuple((arm, f"{units:,}") for arm, units in report["exposures"].items())
    return Section("Arms", tables=(Table(("arm", "units"), rows),))


def _effects(metrics: list[dict[str, Any]]) -> Section:
    rows = tuple((one["arm"], one["metric"], _change(one), one["text"]) for one in metrics)
    return Section("Effects against control", tables=(Table(("arm", "metric", "change", "result"), rows),))


def _shadow(report: dict[str, Any]) -> Section:
    rows = tuple((arm["arm"], arm["shadow"]["text"]) for arm in report["arms"] if arm["shadow"])
    return Section("Shadow", tables=(Table(("arm", "scored under both arms"), rows),) if rows else ())


def _log(experiment: dict[str, Any]) -> Section:
    rows = tuple(
        (
            f"{datetime.fromtimestamp(entry['time'], UTC):%Y-%m-%d %H:%M}",
            " ".join(filter(None, (entry["kind"], entry["arm"]))),
            entry["actor"],
            " ".join(filter(None, (entry["reason"], entry["detail"]))),
        )
        for entry in experiment.get("history", ())
    )
    return Section("Log", tables=(Table(("time, UTC", "action", "by", "reason"), rows),))


def _interval(metric: dict[str, Any]) -> tuple[bool, float | None, float | None, float | None]:
    """Return whether the change is a share of control's value, the change, and its interval's ends."""
    relative = metric["relative"] is not None and (
        metric["relative_low"] is not None or metric["low"] is None
    )
    names = ("relative", "relative_low", "relative_high") if relative else ("difference", "low", "high")
    value, low, high = (metric[name] for name in names)
    return relative, value, low, high


def _change(metric: dict[str, Any]) -> str:
    relative, value, low, high = _interval(metric)

    def write(value: float) -> str:
        text = percent(value, sign=True) if relative else number(value, sign=True)
        return text.replace("-", "−")

    if value is None:
        return "–"
    return write(value) + ("" if low is None or high is None else f" ({write(low)} to {write(high)})")


def _drawing(metrics: list[dict[str, Any]]) -> str:
    """Return the intervals as SVG, one row per arm and metric, each on a scale of its own."""
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {ROW * len(metrics) + 14}"']
    parts.append(' font-family="system-ui, sans-serif" font-size="14" fill="#1b1f24">')
    for index, metric in enumerate(metrics):
        middle = ROW * index + 32
        relative, value, low, high = _interval(metric)
        title = f"{metric['arm']} on {metric['metric']}"
        parts.append(f'<text x="12" y="{middle}" font-weight="600">{escape(title)}</text>')
        parts.append(f'<text x="12" y="{middle + 18}" fill="#57606a">{escape(_change(metric))}</text>')
        margin = metric["margin"] if metric["margin"] and metric["margin_relative"] == relative else None
        limit = None if margin is None else (-margin if metric["better"] == "higher" else margin)
        known = [each for each in (0.0, value, low, high, limit) if each is not None and math.isfinite(each)]
        first, last = min(known), max(known)
        span = (last - first) or 1.0

        def x(value: float, first: float = first, span: float = span) -> float:
            return round(LEFT + (WIDTH - LEFT - RIGHT) * (value - first) / span, 1)

        if low is not None and high is not None:
            parts.append(f'<rect x="{x(low)}" y="{middle - 6}" width="{x(high) - x(low):.1f}" height="12"')
            parts.append(' fill="#a5b8ce"/>')
        parts.append(f'<path d="M{x(0)} {middle - 14}v28" stroke="#1b1f24"/>')
        parts.append(f'<text x="{x(0)}" y="{middle + 28}" font-size="12" text-anchor="middle">0</text>')
        if limit is not None:
            parts.append(f'<path d="M{x(limit)} {middle - 14}v28" stroke="#9a4a00" stroke-dasharray="4 3"/>')
            parts.append(f'<text x="{x(limit)}" y="{middle - 16}" font-size="12" text-anchor="middle"')
            parts.append(' fill="#9a4a00">margin</text>')
        if value is not None:
            parts.append(f'<circle cx="{x(value)}" cy="{middle}" r="4.5" fill="#1d4f91"/>')
    return "".join([*parts, "</svg>"])
