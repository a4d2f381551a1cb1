"""The tables of a run, for the terminal and the page: rows of text, of which the first names the columns."""

from typing import Any

from headroom.loadtest.report import DIMENSIONS, Report

Rows = list[list[str]]

PERCENTILES = ("min", "p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "max", "mean")
TIMES = {
    "latency": "latency_ms",
    "service": "service_ms",
    "send lag": "send_lag_ms",
    "connection wait": "connection_wait_ms",
    "failed": "error_latency_ms",
}


def number(value: float | None) -> str:
    """Return a number with three digits or more."""
    if value is None:
        return "–"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def per_second(rate: float | None) -> str:
    """Return a rate of requests; a dash without one."""
    return "–" if rate is None else f"{rate:,.1f}/s"


def signed(value: float) -> str:
    """Return a change with its sign, and without one if it is rounded to 0."""
    text = f"{value:+,.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def percent(share: float) -> str:
    """Return a change as a share in percent."""
    return f"{signed(100 * share)}%"


def percentiles(report: Report) -> Rows:
    """Return one row per percentile, in milliseconds."""
    rows = [[key, *(number(report[name][key]) for name in TIMES.values())] for key in PERCENTILES]
    return [["ms", *TIMES], *rows]


def by_dimension(report: Report) -> list[Rows]:
    """Return one table for each dimension in which requests differ."""
    counts = ["requests", "errors", "titles", "degraded"]
    counts += ["unreranked"] if report["requests"]["unreranked"] else []
    keys = ("p50", "p90", "p99", "p99.9", "max")
    tables = []
    for dimension in DIMENSIONS:
        rows = [
            [
                name,
                *(f"{row[count]:,}" for count in counts),
                *(number(row["latency_ms"][key]) for key in keys),
            ]
            for name, row in report["by"][dimension].items()
        ]
        if len(rows) > 1:
            tables.append([[dimension, *counts, *(f"{key} ms" for key in keys)], *rows])
    return tables


def errors(report: Report) -> Rows:
    """Return one row per kind of error."""
    scheduled = max(1, report["requests"]["scheduled"])
    rows = [[kind, f"{n:,}", f"{n / scheduled:.3%}"] for kind, n in report["requests"]["errors"].items()]
    return [["error", "requests", "share"], *rows]


def curve(capacity: dict[str, Any]) -> Rows:
    """Return one row per probe of a search."""
    rows = [
        [
            f"{point['rate']:,.1f}",
            f"{point['achieved']:,.1f}",
            number(point["p50_ms"]),
            number(point["p99_ms"]),
            f"{point['errors']:.2%}",
            f"{point.get('unreranked', 0.0):.2%}",
            point["purpose"],
            "held" if point["held"] else "; ".join(point["missed_because"]),
        ]
        for point in capacity["curve"]
    ]
    return [["rate/s", "achieved/s", "p50 ms", "p99 ms", "errors", "not reranked", "probe", ""], *rows]


def highest_rate(capacity: dict[str, Any]) -> str:
    """Return what a search found, in a sentence."""
    if capacity.get("interrupted"):
        return "Interrupted: the highest rate was not found."
    if capacity["rate"] is None:
        return "No rate that was tried holds the objective."
    end = f"{capacity['lost_at']:,.1f}/s did not hold it"
    return f"Highest rate that holds the objective: {capacity['rate']:,.1f} requests/s; {end}."


def summary(report: Report) -> str:
    """Return rates and counts as one line."""
    rates = [f"{per_second(rate)} {name}" for name, rate in report["rate"].items() if name != "sent"]
    requests = report["requests"]
    failed = sum(requests["errors"].values())
    unreranked = f", {requests['unreranked']:,} unreranked" if requests["unreranked"] else ""
    return (
        f"{', '.join(rates)}; "
        f"{requests['ok']:,} of {requests['scheduled']:,} ok{unreranked}, {failed:,} errors"
    )


def objective(report: Report) -> str | None:
    """Return whether the run met its objective; None without one."""
    asked = report["objective"]
    if asked is None:
        return None
    met = "held" if asked["met"] else "missed: " + "; ".join(asked["missed_because"])
    return f"objective {asked['slo']}: {met}"
