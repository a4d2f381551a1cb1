"""Prints progress on stderr, and a short table of a run on stdout."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loadtest.comparing import Difference, Unanswered
from loadtest.numbers import percent, signed
from loadtest.plan import Plan
from loadtest.report import Report, verdict
from loadtest.worker import Progress

LINE_EVERY_S = 10.0
"""Seconds between two lines of progress if stderr is not a terminal."""

_ROWS = ("p50", "p90", "p99", "p99.9", "p99.99", "max", "mean")


class LiveProgress:
    """Shows the progress of a run as one line on stderr. Use it with `with`, and as a `Watcher`."""

    def __init__(self, plan: Plan, seconds: float, label: str = "") -> None:
        self._plan, self._seconds, self._label = plan, seconds, label
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(Text(""), console=self._console, transient=True, auto_refresh=False)
        self._last_line = 0.0

    def __enter__(self) -> LiveProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, at: float, states: list[Progress]) -> None:
        line = self._line(at, states)
        if self._console.is_terminal:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif at - self._last_line >= LINE_EVERY_S:
            self._last_line = at
            print(line, file=sys.stderr, flush=True)

    def _line(self, at: float, states: list[Progress]) -> str:
        label = f"{self._label} " if self._label else ""
        if at < self._plan.warmup:
            return f"{label}warming up {at:.0f} of {self._plan.warmup:g} s"
        at -= self._plan.warmup
        sent, ok, in_flight = (sum(getattr(s, name) for s in states) for name in ("sent", "ok", "in_flight"))
        errors: Counter[str] = Counter()
        for state in states:
            errors.update(state.errors)
        p50, p99 = (_highest([getattr(s, name) for s in states]) for name in ("p50_ms", "p99_ms"))
        failed = ", ".join(f"{count:,} {kind}" for kind, count in errors.most_common(3)) or "no errors"
        shown = min(at, self._seconds)
        rest = " (waiting for the last answers)" if at > self._seconds + 0.5 else ""
        return (
            f"{label}{shown:.0f} of {self._seconds:.0f} s{rest}   {ok / max(at, 1e-9):,.0f}/s answered"
            f"   {in_flight:,} in flight   p50 {p50}  p99 {p99}   {sent:,} sent, {failed}"
        )


def show(report: Report, *, where: str | None = None) -> None:
    """Print the table of one run on stdout; its first line says whether the run is valid."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(verdict(report), style="bold" if report["valid"] else "bold red"))
    rate, requests = report["rate"], report["requests"]
    failed = sum(requests["errors"].values())
    console.print(
        f"{rate['intended']:,.1f}/s intended, {rate['achieved']:,.1f}/s achieved, "
        f"{rate['goodput']:,.1f}/s goodput; "
        f"{requests['ok']:,} of {requests['scheduled']:,} ok, {failed:,} errors"
    )
    for kind, count in requests["errors"].items():
        console.print(f"  {count:,} {kind}")
    table = Table(box=None, pad_edge=False)
    names = {"latency": "latency_ms", "service": "service_ms", "send lag": "send_lag_ms"}
    for title in ("ms", *names):
        table.add_column(title, justify="left" if title == "ms" else "right")
    for row in _ROWS:
        table.add_row(row, *(_number(report[name][row]) for name in names.values()))
    console.print(table)
    for dimension in ("traffic", "endpoint", "variant", "mask", "arm"):
        rows = report["by"][dimension]
        if len(rows) > 1:
            console.print(_by(dimension, rows))
    if report["objective"] is not None:
        met = (
            "held"
            if report["objective"]["met"]
            else "missed: " + "; ".join(report["objective"]["missed_because"])
        )
        console.print(f"objective {report['objective']['slo']}: {met}")
    if report.get("watch") is not None:
        for line in watched(report["watch"]):
            console.print(line)
    capacity = report.get("find_max")
    if capacity:
        console.print(_curve(capacity))
        console.print(_highest_rate(capacity))
    if where:
        console.print(f"report: {where}")


def watched(watch: dict[str, Any]) -> list[str]:
    """Return the lines about a server that was watched."""
    lines = []
    for title, name in (("memory, MB", "memory_mb"), ("open files", "open_files"), ("disk, MB", "disk_mb")):
        if (trend := watch[name]) is not None:
            lines.append(
                f"{title}: {trend['first']:,.1f} to {trend['last']:,.1f}, {signed(trend['per_hour'])} an hour"
                f" (95 %: {signed(trend['low'])} to {signed(trend['high'])})"
            )
    fell = "none fell" if not watch["counters_fell"] else f"{len(watch['counters_fell'])} fell"
    lines.append(f"counters: {fell} in {watch['scrapes']:,} scrapes")
    lines.append("problems: none" if not watch["problems"] else "problems:")
    return [*lines, *(f"  {problem}" for problem in watch["problems"])]


def show_comparison(
    differences: list[Difference], failed: Unanswered, a: Report, b: Report, fields: list[str]
) -> None:
    """Print the table of a comparison on stdout."""
    console = Console(highlight=False, soft_wrap=True)
    if fields:
        console.print(f"the runs' plans differ in: {', '.join(fields)}")
    table = Table(box=None, pad_edge=False)
    for title in ("", "A ms", "B ms", "B over A", "95 % interval"):
        table.add_column(title, justify="right" if title else "left")
    for d in differences:
        table.add_row(
            d.percentile,
            _number(d.a_ms),
            _number(d.b_ms),
            percent(d.change),
            f"{percent(d.low)} to {percent(d.high)}",
        )
    for name in ("achieved", "goodput"):
        one, two = a["rate"][name], b["rate"][name]
        table.add_row(f"{name}/s", f"{one:,.1f}", f"{two:,.1f}", percent(two / one - 1) if one else "–", "")
    interval = f"{signed(100 * failed.low)} to {signed(100 * failed.high)} points"
    change = f"{signed(100 * failed.change)} points"
    table.add_row("unanswered", f"{failed.a:.1%}", f"{failed.b:.1%}", change, interval)
    console.print(table)


def _by(dimension: str, rows: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in (dimension, "requests", "errors", "p50 ms", "p99 ms"):
        table.add_column(title, justify="left" if title == dimension else "right")
    for name, row in rows.items():
        latency = row["latency_ms"]
        table.add_row(
            Text(name),
            f"{row['requests']:,}",
            f"{row['errors']:,}",
            _number(latency["p50"]),
            _number(latency["p99"]),
        )
    return table


def _curve(capacity: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("rate/s", "achieved/s", "p50 ms", "p99 ms", "errors", ""):
        table.add_column(title, justify="right" if title else "left")
    for point in capacity["curve"]:
        table.add_row(
            f"{point['rate']:,.1f}",
            f"{point['achieved']:,.1f}",
            _number(point["p50_ms"]),
            _number(point["p99_ms"]),
            f"{point['errors']:.2%}",
            "held" if point["held"] else "missed",
        )
    return table


def _highest_rate(capacity: dict[str, Any]) -> str:
    if capacity["rate"] is None:
        return "no rate that was tried holds the objective"
    high = capacity["lost_at"]
    end = f"{high:,.1f} did not hold" if high else "above it the client was the limit"
    return f"highest rate that holds the objective: {capacity['rate']:,.1f} requests/s ({end})"


def _highest(values: Sequence[float | None]) -> str:
    """Return the highest of the processes' times; a dash if no process had an answer."""
    known = [value for value in values if value is not None]
    return f"{max(known):.1f} ms" if known else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
