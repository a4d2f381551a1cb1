"""An experiment as text: what it says, and how it got there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

LATEST = 10
"""Entries of the log that are shown."""


def describe(found: dict[str, Any], *, analysed: bool) -> str:
    """Of an answer of /v1/experiments/{name}; analysed: it was asked what the experiment says."""
    parts = [_heading(found)]
    report = found.get("report")
    if report is not None:
        parts.append(f"{report['recommendation'].upper()}: {report['text']}")
        parts.append(_exposures(report))
        if metrics := _metrics(report):
            parts.append(metrics)
        if shadows := [arm["shadow"]["text"] for arm in report["arms"] if arm["shadow"]]:
            parts.append("\n".join(["Scored under both arms (shadow):", *(f"  {text}" for text in shadows)]))
    elif analysed:
        parts.append("No analysis at present: the service cannot reach its database.")
    if history := found.get("history"):
        parts.append("\n".join(["Log:", *(f"  {_entry(entry)}" for entry in history[-LATEST:])]))
    return "\n\n".join(parts)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of the width that they need; the first row is the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _heading(found: dict[str, Any]) -> str:
    status = [str(found[key]) for key in ("status",) if found.get(key)]
    if found.get("traffic") is not None:
        status.append(f"traffic {found['traffic']:.3g}")
    if found.get("rolled_back"):
        status.append(f"rolled back: {', '.join(found['rolled_back'])}")
    if found.get("shipped"):
        status.append(f"shipped: {found['shipped']}")
    return f"{found['name']}: {', '.join(status)}" if status else str(found["name"])


def _exposures(report: dict[str, Any]) -> str:
    counts = ", ".join(f"{arm} {count:,}" for arm, count in report["exposures"].items())
    ratio = report["sample_ratio"]
    return (
        f"Exposed units: {counts}. Sample ratio: p = {ratio['sequential_p']:.3g} over all looks, "
        f"{ratio['chi_square_p']:.3g} at this one (χ²)."
    )


def _metrics(report: dict[str, Any]) -> str:
    level = f"{100 * (1 - report['alpha']):g} % at any time"
    rows = [["metric", "arm", "control", "value", "change", level, "verdict"]]
    for arm in report["arms"]:
        for metric in arm["metrics"]:
            change, low, high = (metric[key] for key in ("relative", "relative_low", "relative_high"))
            scale, unit = 100.0, " %"
            if low is None or high is None:
                change, low, high = (metric[key] for key in ("difference", "low", "high"))
                scale, unit = 1.0, ""
            rows.append(
                [
                    metric["metric"],
                    arm["arm"],
                    _number(metric["control_value"]),
                    _number(metric["value"]),
                    "–" if change is None else f"{scale * change:+.3g}{unit}",
                    "–"
                    if low is None or high is None
                    else f"{scale * low:+.3g} to {scale * high:+.3g}{unit}",
                    metric["decision"].replace("_", " "),
                ]
            )
            if (raw := metric.get("uncapped")) is not None:
                rows.append(_uncapped(arm["arm"], raw))
    return table(rows) if len(rows) > 1 else ""


def _uncapped(arm: str, raw: dict[str, Any]) -> list[str]:
    """The row below a metric with `winsorize`: the same without the cap."""
    change, low, high = (raw[key] for key in ("relative", "relative_low", "relative_high"))
    return [
        "  without cap",
        arm,
        _number(raw["control_value"]),
        _number(raw["value"]),
        "–" if change is None else f"{100 * change:+.3g} %",
        "–" if low is None or high is None else f"{100 * low:+.3g} to {100 * high:+.3g} %",
        f"cap {_number(raw['cap'])}",
    ]


def _entry(entry: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(entry["time"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    what = [str(entry[key]) for key in ("kind", "arm") if entry.get(key)]
    if entry.get("traffic") is not None:
        what.append(f"{entry['traffic']:.3g}")
    why = ", ".join(str(entry[key]) for key in ("reason", "detail") if entry.get(key))
    return f"{moment}  {' '.join(what)} by {entry['actor']}" + (f": {why}" if why else "")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
