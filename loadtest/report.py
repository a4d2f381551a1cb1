"""`report.json`: all results of a run under stable names (`schema` increases if one changes)."""

import json
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from headroom.loadtest.histogram import Histogram
from headroom.loadtest.judging import Objective, invalid_because
from headroom.loadtest.plan import PlanError
from headroom.loadtest.recorder import Recorder, Tally
from headroom.loadtest.running import Outcome

SCHEMA = 1
DIMENSIONS = ("traffic", "endpoint", "variant", "mask", "arm")

Report = dict[str, Any]


def build(
    outcome: Outcome,
    objective: Objective | None = None,
    *,
    metrics: dict[str, Any] | None = None,
    events: list[dict[str, Any]] | None = None,
) -> Report:
    """Return the report of one run, in milliseconds, requests per second and seconds since the warm-up."""
    recorder = outcome.recorder
    seconds = outcome.seconds
    width = recorder.window
    latency = recorder.latency()
    reasons = invalid_because(outcome)
    good = recorder.ok
    if objective is not None:
        good = objective.good(recorder, latency)
    return {
        "schema": SCHEMA,
        "valid": not reasons,
        "invalid_because": reasons,
        "interrupted": outcome.interrupted,
        "started_at": outcome.started_at.isoformat(timespec="milliseconds"),
        "seconds": seconds,
        "latency_ms": latency.summary_ms(),
        "service_ms": recorder.service.summary_ms(),
        "send_lag_ms": recorder.send_lag.summary_ms(),
        "connection_wait_ms": recorder.connection_wait.summary_ms(),
        "error_latency_ms": recorder.error_latency.summary_ms(),
        "rate": _rates(recorder, seconds, good),
        "requests": _requests(recorder),
        "objective": None if objective is None else _judged(objective, recorder, latency),
        "by": {dimension: _by(recorder, index) for index, dimension in enumerate(DIMENSIONS)},
        "stages_ms": {stage: histogram.summary_ms() for stage, histogram in recorder.stages.items()},
        "server_metrics": metrics,
        "client_cpu_share": outcome.cpu_share,
        "events": events or [],
        "plan": outcome.plan.model_dump(mode="json", by_alias=True),
        "machine": _machine(),
        "series": {
            "window_seconds": width,
            "windows": [_window(window, n * width, width) for n, window in enumerate(recorder.windows)],
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
    line = "valid"
    if report["interrupted"] and "find_max" in report:
        line += ", interrupted before the highest rate was found"
    elif report["interrupted"]:
        line += f", interrupted after {report['seconds']:.0f} s"
    return line


def missed_objective(report: Report) -> list[str]:
    """Return why a run missed its objective; empty if it met it, has none, or was interrupted."""
    objective = report["objective"]
    return [] if objective is None or report["interrupted"] else list(objective["missed_because"])


def _judged(objective: Objective, recorder: Recorder, latency: Histogram) -> dict[str, Any]:
    missed = objective.missed(recorder, latency)
    return {
        "slo": objective.text,
        "bound_ms": objective.bound_ms,
        "met": not missed,
        "missed_because": missed,
    }


def _rates(recorder: Recorder, seconds: float, good: int) -> dict[str, float | None]:
    """Return requests per second. A run without length, such as a burst at one time, has no rates."""
    if not seconds:
        return dict.fromkeys(("intended", "sent", "achieved", "goodput"))
    return {
        "intended": recorder.scheduled / seconds,
        "sent": recorder.sent / seconds,
        "achieved": recorder.ok / recorder.answering_seconds(seconds),
        "goodput": good / seconds,
    }


def _requests(recorder: Recorder) -> dict[str, Any]:
    """Return what became of the requests."""
    return {
        "scheduled": recorder.scheduled,
        "sent": recorder.sent,
        "answered": sum(window.answered for window in recorder.windows),
        "ok": recorder.ok,
        "unreranked": recorder.unreranked,
        "errors": dict(sorted(recorder.errors.items())),
    }


def _by(recorder: Recorder, dimension: int) -> dict[str, Any]:
    """Return one table: the groups joined by their name in this dimension."""
    joined: dict[str, Tally] = {}
    for key, group in recorder.groups.items():
        joined.setdefault(key[dimension] or "-", Tally()).add(group)
    return {
        name: {
            "requests": group.ok + group.errors,
            "ok": group.ok,
            "errors": group.errors,
            "titles": group.titles,
            "degraded": group.degraded,
            "unreranked": group.unreranked,
            "latency_ms": group.latency.summary_ms(),
        }
        for name, group in sorted(joined.items())
    }


def _window(window: Tally, at: float, width: float) -> dict[str, Any]:
    latency = window.latency
    return {
        "at": at,
        "intended": window.scheduled / width,
        "sent": window.sent / width,
        "achieved": window.answered / width,
        "ok": window.ok,
        "errors": window.errors,
        "unreranked": window.unreranked,
        **{f"p{percent}": latency.percentile_ms(percent) for percent in (50, 90, 99)},
        "max": latency.max_ms(),
        "mean": latency.mean_ms(),
        "latency": latency.encode() if len(latency) else None,
    }


def _machine() -> dict[str, Any]:
    """Return the client's machine and versions, because numbers depend on them."""
    file = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.*)", file.read_text("utf-8") if file.exists() else "")
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": cpu[1] if cpu else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("uvloop", "httptools", "hdrhistogram", "numpy")},
    }
