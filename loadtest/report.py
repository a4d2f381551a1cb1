"""`report.json`: all results of a run under stable names (`schema` increases if one changes)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from loadtest import machine
from loadtest.errors import PlanError
from loadtest.histogram import Histogram, ranks
from loadtest.objective import Objective
from loadtest.recorder import Group, Recorder, Window
from loadtest.running import Outcome
from loadtest.validity import invalid_because

SCHEMA = 1
DIMENSIONS = ("traffic", "endpoint", "variant", "mask", "arm")

Report = dict[str, Any]


def build(
    outcome: Outcome,
    objective: Objective | None = None,
    *,
    metrics: dict[str, Any] | None = None,
    models: Any = None,
    events: list[dict[str, Any]] | None = None,
) -> Report:
    """Return the report of one run, in milliseconds, requests per second and seconds since the warm-up."""
    recorder = outcome.recorder
    latency = recorder.latency()
    reasons = invalid_because(outcome)
    return {
        "schema": SCHEMA,
        "valid": not reasons,
        "invalid_because": reasons,
        "interrupted": outcome.interrupted,
        "started_at": outcome.started_at.isoformat(timespec="milliseconds"),
        "seconds": outcome.seconds,
        "latency_ms": latency.summary_ms(),
        "service_ms": recorder.service.summary_ms(),
        "send_lag_ms": recorder.send_lag.summary_ms(),
        "connection_wait_ms": recorder.connection_wait.summary_ms(),
        "error_latency_ms": recorder.error_latency.summary_ms(),
        "rate": _rates(recorder, outcome.seconds, objective, latency),
        "requests": _requests(recorder),
        "objective": _objective(recorder, objective, latency),
        "by": {dimension: _by(recorder, place) for place, dimension in enumerate(DIMENSIONS)},
        "stages_ms": {stage: histogram.summary_ms() for stage, histogram in recorder.stages.items()},
        "server_metrics": metrics,
        "server_models": models,
        "client_cpu_share": outcome.cpu_share,
        "events": events or [],
        "plan": outcome.plan.model_dump(mode="json", by_alias=True),
        "machine": machine.describe(),
        "spectrum": spectrum(latency),
        "series": {
            "window_seconds": recorder.window,
            "windows": [
                _window(window, place * recorder.window, recorder.window)
                for place, window in enumerate(recorder.windows)
            ],
        },
        "histograms": {"latency": latency.encode(), "service": recorder.service.encode()},
    }


def read(path: Path) -> Report:
    """Read a report.json, or the one in a run's directory. Raises PlanError."""
    file = path / "report.json" if path.is_dir() else path
    try:
        report = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{file}: cannot be read: {error}") from None
    if not isinstance(report, dict) or report.get("schema") != SCHEMA or "series" not in report:
        raise PlanError(f"{file}: is not the report of a run (schema {SCHEMA})")
    return report


def verdict(report: Report) -> str:
    """Return the report's first line."""
    if not report["valid"]:
        return "INVALID: " + "; ".join(report["invalid_because"])
    line = f"valid, interrupted after {report['seconds']:.0f} s" if report["interrupted"] else "valid"
    count = len(server_problems(report))
    if count:
        line += f"; {count} {'problem' if count == 1 else 'problems'} of the server, listed further down"
    return line


def missed_objective(report: Report) -> list[str]:
    """Return why a run missed its objective; empty if it met it, has none, or was interrupted."""
    objective = report["objective"]
    return [] if objective is None or report["interrupted"] else list(objective["missed_because"])


def server_problems(report: Report) -> list[str]:
    """Return what the server did wrong, of a run that watched it; else an empty list."""
    watch = report.get("watch")
    return [] if watch is None else list(watch["problems"])


def spectrum(latency: Histogram) -> list[tuple[float, float]]:
    """Return (percentile, milliseconds), evenly spaced in nines, so p0, p90 and p99 are equally far apart."""
    values, counts = latency.counts()
    if not len(values):
        return []
    below = np.cumsum(counts)
    total = int(below[-1])
    nines = np.linspace(0, max(1.0, math.log10(total)), 120)
    places = np.searchsorted(below, ranks(100 * (1 - 10.0**-nines), total))
    picked = values[np.minimum(places, len(values) - 1)]
    return [(100 * (1 - 10.0 ** -float(n)), float(v)) for n, v in zip(nines, picked, strict=True)]


def _rates(
    recorder: Recorder, seconds: float, objective: Objective | None, latency: Histogram
) -> dict[str, float]:
    """Return requests per second: planned, sent, answered, and answered as the objective asks."""
    good = objective.good(recorder, latency) if objective else recorder.ok
    return {
        "intended": recorder.scheduled / seconds,
        "sent": recorder.sent / seconds,
        "achieved": recorder.ok / recorder.answering_seconds(seconds),
        "goodput": good / seconds,
    }


def _requests(recorder: Recorder) -> dict[str, Any]:
    """Return how many requests were planned, sent and answered, and their errors by kind."""
    return {
        "scheduled": recorder.scheduled,
        "sent": recorder.sent,
        "answered": sum(window.answered for window in recorder.windows),
        "ok": recorder.ok,
        "errors": dict(sorted(recorder.errors.items())),
    }


def _objective(recorder: Recorder, objective: Objective | None, latency: Histogram) -> dict[str, Any] | None:
    """Return whether the run met its objective, and why not; None without an objective."""
    if objective is None:
        return None
    missed = objective.missed(recorder, latency)
    return {
        "slo": objective.text,
        "bound_ms": objective.bound_ms,
        "met": not missed,
        "missed_because": missed,
    }


def _by(recorder: Recorder, place: int) -> dict[str, Any]:
    """Return one table: the groups joined by their name in this dimension."""
    joined: dict[str, Group] = {}
    for key, group in recorder.groups.items():
        joined.setdefault(key[place] or "-", Group()).add(group)
    return {
        name: {
            "requests": group.ok + group.errors,
            "ok": group.ok,
            "errors": group.errors,
            "titles": group.titles,
            "degraded": group.degraded,
            "latency_ms": group.latency.summary_ms(),
        }
        for name, group in sorted(joined.items())
    }


def _window(window: Window, at: float, width: float) -> dict[str, Any]:
    latency = window.latency
    return {
        "at": at,
        "intended": window.scheduled / width,
        "sent": window.sent / width,
        "achieved": window.answered / width,
        "ok": window.ok,
        "errors": window.errors,
        **{f"p{percent}": latency.percentile_ms(percent) for percent in (50, 90, 99)},
        "max": latency.max_ms(),
        "mean": latency.mean_ms(),
        "stages_mean_ms": {stage: total / window.ok * 1000 for stage, total in window.stages.items()},
        "latency": latency.encode() if len(latency) else None,
    }
