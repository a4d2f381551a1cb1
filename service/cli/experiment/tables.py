"""An experiment's report and log as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from models.commands.terminal import table
from models.numbers import number, percent

LATEST = 10
"""How many entries of the log are shown, newest last."""


def describe(experiment: dict[str, Any], *, analysed: bool) -> str:
    """Return an answer of /v1/experiments/{name} as text.

    analysed: whether the request asked for the analysis.
    """
    parts = [_heading(experiment)]
    report = experiment.get("report")
    if report is not None:
        parts.append(f"{report['recommendation'].upper()}: {report['text']}")
        parts.append(_exposures(report))
        if metrics := _metrics(report):
            parts.append(metrics)
        if shadows := [arm["shadow"]["text"] for arm in report["arms"] if arm["shadow"]]:
            parts.append("\n".join(["Scored under both arms (shadow):", *(f"  {text}" for text in shadows)]))
    elif analysed:
        parts.append("No analysis at present: the service cannot reach its database.")
    if history := experiment.get("history"):
        parts.append("\n".join(["Log:", *(f"  {_entry(entry)}" for entry in history[-LATEST:])]))
    return "\n\n".join(parts)


def _heading(experiment: dict[str, Any]) -> str:
    status = [str(experiment["status"])] if experiment.get("status") else []
    if experiment.get("traffic") is not None:
        status.append(f"traffic {experiment['traffic']:.3g}")
    if experiment.get("rolled_back"):
        status.append(f"rolled back: {', '.join(experiment['rolled_back'])}")
    if experiment.get("shipped"):
        status.append(f"shipped: {experiment['shipped']}")
    return f"{experiment['name']}: {', '.join(status)}" if status else str(experiment["name"])


def _exposures(report: dict[str, Any]) -> str:
    counts = ", ".join(f"{arm} {count:,}" for arm, count in report["exposures"].items())
    ratio = report["sample_ratio"]
    if not ratio["epochs"]:
        return f"Exposed units: {counts or 'none'}. Sample ratio: not checked. {ratio['text']}"
    return f"Exposed units: {counts}. Sample ratio: p = {ratio['sequential_p']:.3g} over all looks."


def _metrics(report: dict[str, Any]) -> str:
    level = f"{100 * (1 - report['alpha']):g} % at any time"
    rows = [["metric", "arm", "control", "value", "change", level, "verdict"]]
    metrics = [metric for arm in report["arms"] for metric in arm["metrics"]]
    rows += [
        [
            metric["metric"],
            metric["arm"],
            _number(metric["control_value"]),
            _number(metric["value"]),
            *_change(metric),
            metric["decision"].replace("_", " "),
        ]
        for metric in metrics
    ]
    early = [
        f"  {metric['arm']} on {metric['metric']}: {metric['early']:,} of the arm, "
        f"{metric['control_early']:,} of control"
        for metric in metrics
        if metric["early"] or metric["control_early"]
    ]
    if early:
        early = ["", "Outcomes from before their unit's exposure, which do not count:", *early]
    return "\n".join([table(rows), *early]) if len(rows) > 1 else ""


def _change(metric: dict[str, Any]) -> tuple[str, str]:
    """Return a change and its interval, in percent if that has one."""
    has_percent = metric["relative_low"] is not None and metric["relative_high"] is not None
    keys = ("relative", "relative_low", "relative_high") if has_percent else ("difference", "low", "high")
    text = percent if has_percent else number
    change, *ends = (None if metric[key] is None else text(metric[key], digits=3, sign=True) for key in keys)
    return change or "–", "–" if None in ends else " to ".join(map(str, ends))


def _entry(entry: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(entry["time"], UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    what = [str(entry[key]) for key in ("kind", "arm") if entry.get(key)]
    if entry.get("traffic") is not None:
        what.append(f"{entry['traffic']:.3g}")
    why = ", ".join(str(entry[key]) for key in ("reason", "detail") if entry.get(key))
    return f"{moment}  {' '.join(what)} by {entry['actor']}" + (f": {why}" if why else "")


def _number(value: float | None) -> str:
    return "–" if value is None else number(value, digits=4)
