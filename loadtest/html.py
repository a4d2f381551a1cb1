"""Writes `report.html`: one file without scripts that loads nothing else."""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path
from typing import Any

from loadtest import svg, terminal
from loadtest.report import Report, server_problems, verdict

_CSS = (Path(__file__).parent / "report.css").read_text("utf-8")


def render(report: Report) -> str:
    """Return the page of one run."""
    verdict_class = "good" if report["valid"] and not server_problems(report) else "bad"
    plan = report["plan"]
    return "".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>Load test of {escape(plan['url'])}</title><style>{_CSS}</style><body>",
            f'<p class="verdict {verdict_class}">{escape(verdict(report))}</p>',
            f"<h1>Load test of {escape(plan['url'])}</h1>",
            f"<p>{escape(plan['description'] or '')} Started {escape(report['started_at'])}, "
            f"{report['seconds']:.0f} s measured after {plan['warmup']:g} s of warm-up.</p>",
            _tiles(report),
            _find_max(report.get("find_max"), report["objective"]),
            _over_time(report),
            _spectrum(report),
            _rates(report),
            _stages(report),
            _percentile_table(report),
            *(
                _by(dimension, report["by"][dimension])
                for dimension in ("variant", "mask", "arm", "endpoint", "traffic")
            ),
            _errors(report),
            _watch(report.get("watch"), report["events"]),
            _metrics(report["server_metrics"]),
            _facts("Client machine and versions", report["machine"]),
            _models(report["server_models"]),
            _facts("Plan", plan),
            "</body></html>",
        ]
    )


def _tiles(report: Report) -> str:
    latency, rate, requests = report["latency_ms"], report["rate"], report["requests"]
    failed = sum(requests["errors"].values())
    tiles = [
        ("p50", _ms(latency["p50"])),
        ("p99", _ms(latency["p99"])),
        ("p99.9", _ms(latency["p99.9"])),
        ("achieved", f"{rate['achieved']:,.1f}/s of {rate['intended']:,.1f}/s"),
        ("goodput", f"{rate['goodput']:,.1f}/s"),
        ("errors", f"{failed:,} of {requests['scheduled']:,}"),
        ("send lag p99", _ms(report["send_lag_ms"]["p99"])),
    ]
    if report["objective"] is not None:
        tiles.append((report["objective"]["slo"], "held" if report["objective"]["met"] else "missed"))
    return (
        "<dl class=tiles>" + "".join(f"<div><dt>{escape(k)}<dd>{escape(v)}</div>" for k, v in tiles) + "</dl>"
    )


def _over_time(report: Report) -> str:
    windows = _inside(report)
    curves = [
        svg.Line(name, [(w["at"], w[name]) for w in windows], colour)
        for colour, name in enumerate(("p50", "p90", "p99", "max"))
    ]
    chart = svg.Chart("Latency over time, by intended send time", "s", "ms", log=True, marks=_marks(report))
    return svg.lines(chart, curves)


def _spectrum(report: Report) -> str:
    if not report["spectrum"]:
        return ""
    points = [(_nines(percent), ms) for percent, ms in report["spectrum"]]
    last_nine = math.ceil(points[-1][0] - 1e-6)
    ticks = [(0.0, "0"), (math.log10(2), "50"), (1.0, "90")]
    ticks += [(float(n), "99" if n == 2 else "99." + "9" * (n - 2)) for n in range(2, last_nine + 1)]
    bound = report["objective"]["bound_ms"] if report["objective"] else None
    chart = svg.Chart(
        "Percentile spectrum",
        "percentile (logarithmic in nines)",
        "ms",
        log=True,
        ticks=ticks,
        level=None if bound is None else (bound, "objective"),
    )
    return svg.lines(chart, [svg.Line("latency", points, 0)])


def _rates(report: Report) -> str:
    width = report["series"]["window_seconds"]
    windows = report["series"]["windows"]
    curves = [
        svg.Line("intended", [(w["at"], w["intended"]) for w in windows], 3, dashed=True),
        svg.Line("answered", [(w["at"], w["achieved"]) for w in windows], 0),
    ]
    if any(w["errors"] for w in windows):
        curves.append(svg.Line("errors", [(w["at"], w["errors"] / width) for w in windows], 2))
    chart = svg.Chart("Rate achieved against intended", "s", "requests/s", marks=_marks(report))
    return svg.lines(chart, curves)


def _stages(report: Report) -> str:
    """Return the chart of the server's stages of a request (`Server-Timing`) and of the rest."""
    windows = _inside(report)
    if len(windows) < 2 or not report["stages_ms"]:
        return ""
    names = [name for name in report["stages_ms"] if name != "total"]
    layers = [(name, [w["stages_mean_ms"].get(name, 0.0) for w in windows]) for name in names]
    known = [sum(layer[i] for _, layer in layers) for i in range(len(windows))]
    if "total" in report["stages_ms"]:
        totals = [w["stages_mean_ms"].get("total", 0.0) for w in windows]
        layers.append(("rest of the server", [max(0.0, t - k) for t, k in zip(totals, known, strict=True)]))
        outside = [max(0.0, w["mean"] - t) if t else 0.0 for w, t in zip(windows, totals, strict=True)]
        layers.append(("outside the server", outside))
    chart = svg.Chart("Mean latency by the server's stages (Server-Timing)", "s", "ms", marks=_marks(report))
    return svg.stack(chart, [w["at"] for w in windows], layers)


def _find_max(capacity: dict[str, Any] | None, objective: dict[str, Any] | None) -> str:
    if not capacity:
        return ""
    curve = capacity["curve"]
    lines = [
        svg.Line(name, [(p["rate"], p[f"{name}_ms"]) for p in curve], colour, dots=True)
        for colour, name in enumerate(("p50", "p90", "p99"))
    ]
    marks = [(capacity["rate"], f"{capacity['rate']:,.1f}/s")] if capacity["rate"] else []
    level = (objective["bound_ms"], objective["slo"]) if objective else None
    chart = svg.Chart("Latency against rate", "requests/s", "ms", log=True, marks=marks, level=level)
    rows = [
        [
            f"{p['rate']:,.1f}",
            f"{p['achieved']:,.1f}",
            _ms(p["p50_ms"]),
            _ms(p["p99_ms"]),
            f"{p['errors']:.2%}",
            p["purpose"],
            "held" if p["held"] else "; ".join(p["missed_because"]),
        ]
        for p in curve
    ]
    high = capacity["lost_at"]
    answer = (
        "No rate that was tried holds the objective."
        if capacity["rate"] is None
        else f"Highest rate that holds the objective: {capacity['rate']:,.1f} requests/s"
        + (f"; {high:,.1f}/s no longer did." if high else "; above it the client was the limit.")
    )
    head = ["rate/s", "achieved/s", "p50", "p99", "errors", "probe", ""]
    return f"<h2>{escape(answer)}</h2>" + svg.lines(chart, lines) + _table(head, rows)


def _percentile_table(report: Report) -> str:
    names = {
        "latency": "latency_ms",
        "service time": "service_ms",
        "wait for a connection": "connection_wait_ms",
        "send lag": "send_lag_ms",
        "failed requests": "error_latency_ms",
    }
    keys = ("min", "p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "max", "mean")
    rows = [[title, *(_ms(report[name][key]) for key in keys)] for title, name in names.items()]
    note = (
        "<p>Latency counts from the intended send time and includes timeouts at the time they were given up; "
        "service time counts from the write. Send lag is the client's own delay.</p>"
    )
    return "<h2>Percentiles</h2>" + _table(["", *keys], rows) + note


def _by(dimension: str, rows: dict[str, Any]) -> str:
    if not rows or (len(rows) == 1 and dimension in ("arm", "traffic", "endpoint")):
        return ""
    head = [dimension, "requests", "errors", "titles", "degraded", "p50", "p90", "p99", "p99.9", "max"]
    table = [
        [name, *(f"{row[key]:,}" for key in head[1:5]), *(_ms(row["latency_ms"][key]) for key in head[5:])]
        for name, row in rows.items()
    ]
    return f"<h2>By {escape(dimension)}</h2>" + _table(head, table)


def _errors(report: Report) -> str:
    errors, scheduled = report["requests"]["errors"], max(1, report["requests"]["scheduled"])
    if not errors:
        return "<h2>Errors</h2><p>None.</p>"
    rows = [[kind, f"{count:,}", f"{count / scheduled:.3%}"] for kind, count in errors.items()]
    return "<h2>Errors</h2>" + _table(["kind", "requests", "share"], rows)


def _watch(watch: dict[str, Any] | None, events: list[dict[str, Any]]) -> str:
    if watch is None:
        return ""
    lines = "".join(f"<li>{escape(line)}" for line in terminal.watched(watch))
    rows = [
        [f"{event['at']:,.0f}", event["name"], str(event["status"]), json.dumps(event.get("said", ""))]
        for event in events
    ]
    table = _table(["s", "event", "status", "said"], rows, numbers=False)
    return f"<h2>The server's processes</h2><ul>{lines}</ul><h2>Events</h2>{table}"


def _metrics(metrics: dict[str, Any] | None) -> str:
    if not metrics:
        return ""
    stages = metrics["stage_mean_ms"]
    bars = ""
    if stages:
        total = sum(stages.values()) or 1.0
        pieces = "".join(
            f'<i class="c{number}" style="width:{mean / total:.2%}"></i>'
            for number, mean in enumerate(stages.values())
        )
        keys = "".join(
            f'<span class="key"><i class="c{number}"></i>{escape(name)} {_ms(mean)}</span>'
            for number, (name, mean) in enumerate(stages.items())
        )
        caption = f"<figcaption><b>Mean time by stage (/metrics)</b>{keys}</figcaption>"
        bars = f"<figure>{caption}<div class=bar>{pieces}</div></figure>"
    rows = [[name, f"{value:,g}"] for name, value in metrics["counters"].items()]
    note = (
        "The server restarted in between: counters began anew."
        if metrics["restarted"]
        else "Warm-up included."
    )
    return f"<h2>/metrics, after less before</h2><p>{note}</p>{bars}" + _table(["counter", "grew by"], rows)


def _models(models: Any) -> str:
    if models is None:
        return ""
    text = json.dumps(models, indent=1, ensure_ascii=False)[:20_000]
    return f"<details><summary>Served models (/v1/models)</summary><pre>{escape(text)}</pre></details>"


def _facts(title: str, facts: dict[str, Any]) -> str:
    rows = [
        [name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
        for name, value in facts.items()
        if value not in (None, "", [], {})
    ]
    return f"<h2>{escape(title)}</h2>" + _table(["", ""], rows, numbers=False)


def _table(head: list[str], rows: list[list[str]], *, numbers: bool = True) -> str:
    titles = "".join(f"<th>{escape(title)}" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) for row in rows)
    kind = "numbers" if numbers else "facts"
    return f"<div class=scroll><table class={kind}><thead><tr>{titles}<tbody>{body}</table></div>"


def _inside(report: Report) -> list[dict[str, Any]]:
    return [w for w in report["series"]["windows"] if w["at"] < report["seconds"]]


def _marks(report: Report) -> list[tuple[float, str]]:
    return [(event["at"], event["name"]) for event in report["events"]]


def _nines(percent: float) -> float:
    return -math.log10(max(1e-9, 1 - percent / 100))


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return (
        f"{value / 1000:,.2f} s"
        if value >= 10_000
        else f"{value:,.2f} ms"
        if value < 100
        else f"{value:,.0f} ms"
    )
