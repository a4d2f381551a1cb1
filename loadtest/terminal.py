"""Prints progress on stderr, and a short table of a run on stdout."""

from __future__ import annotations

import sys
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loadtest import tables
from loadtest.comparing import Difference, Unanswered
from loadtest.plan import Plan
from loadtest.report import Report, verdict
from loadtest.tables import number, percent, signed
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
        p50, p99 = (
            max((value for s in states if (value := getattr(s, name)) is not None), default=None)
            for name in ("p50_ms", "p99_ms")
        )
        failed = ", ".join(f"{count:,} {kind}" for kind, count in errors.most_common(3)) or "no errors"
        rest = " (waiting for the last answers)" if at > self._seconds + 0.5 else ""
        return (
            f"{label}{min(at, self._seconds):.0f} of {self._seconds:.0f} s{rest}"
            f"   {ok / max(at, 1e-9):,.0f}/s answered   {in_flight:,} in flight"
            f"   p50 {tables.ms(p50)}  p99 {tables.ms(p99)}   {sent:,} sent, {failed}"
        )


def _table(rows: tables.Rows) -> Table:
    table = Table(box=None, pad_edge=False)
    for index, title in enumerate(rows[0]):
        table.add_column(title, justify="right" if index and title else "left")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table


def show(report: Report, *, where: str | None = None) -> None:
    """Print the table of one run on stdout; its first line says whether the run is valid."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(verdict(report), style="bold" if report["valid"] else "bold red"))
    console.print(tables.summary(report))
    for kind, count in report["requests"]["errors"].items():
        console.print(f"  {count:,} {kind}")
    names = {"latency": "latency_ms", "service": "service_ms", "send lag": "send_lag_ms"}
    rows = [[row, *(number(report[name][row]) for name in names.values())] for row in _ROWS]
    console.print(_table([["ms", *names], *rows]))
    for table in tables.by_dimension(report):
        console.print(_table(table))
    if (objective := tables.objective(report)) is not None:
        console.print(objective)
    for line in tables.watched(report["watch"]) if report.get("watch") else ():
        console.print(line)
    if capacity := report.get("find_max"):
        console.print(_table(tables.curve(capacity)))
        console.print(tables.highest_rate(capacity))
    if where:
        console.print(f"report: {where}")


def show_comparison(
    differences: list[Difference], failed: Unanswered, a: Report, b: Report, fields: list[str]
) -> None:
    """Print the table of a comparison on stdout."""
    console = Console(highlight=False, soft_wrap=True)
    if fields:
        console.print(f"the runs' plans differ in: {', '.join(fields)}")
    rows = [["", "A ms", "B ms", "B over A", "95 % interval"]]
    for d in differences:
        interval = f"{percent(d.low)} to {percent(d.high)}"
        rows.append([d.percentile, number(d.a_ms), number(d.b_ms), percent(d.change), interval])
    for name in ("achieved", "goodput"):
        one, two = a["rate"][name], b["rate"][name]
        rows.append([f"{name}/s", f"{one:,.1f}", f"{two:,.1f}", percent(two / one - 1) if one else "–", ""])
    interval = f"{signed(100 * failed.low)} to {signed(100 * failed.high)} points"
    change = f"{signed(100 * failed.change)} points"
    rows.append(["unanswered", f"{failed.a:.1%}", f"{failed.b:.1%}", change, interval])
    console.print(_table(rows))
