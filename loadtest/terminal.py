"""Prints progress on stderr, and a short table of a run on stdout."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headroom.loadtest import tables
from headroom.loadtest.comparing import Comparison, Unanswered, plans_differ_in
from headroom.loadtest.plan import Plan
from headroom.loadtest.report import Report, verdict
from headroom.loadtest.running import Watcher
from headroom.loadtest.tables import number, percent, signed

LINE_EVERY_S = 10.0
"""Seconds between two lines of progress if stderr is not a terminal."""

COLUMNS = 100
"""Columns that every table fits."""
_ROWS = ("ms", "p50", "p90", "p99", "p99.9", "p99.99", "max", "mean")


@contextmanager
def live_progress(plan: Plan, seconds: float) -> Iterator[Watcher]:
    """Show the progress of a run on stderr: in one line that changes, or in a line every LINE_EVERY_S."""
    console = Console(stderr=True, highlight=False)
    last_line = 0.0
    with Live(Text(""), console=console, transient=True, auto_refresh=False) as live:

        def show_line(at: float, counts: Counter[str]) -> None:
            nonlocal last_line
            measured = at - plan.warmup
            line = f"warming up {at:.0f} of {plan.warmup:g} s"
            if measured >= 0:
                rest = " (waiting for the last answers)" if measured > seconds + 0.5 else ""
                counted = "   ".join(f"{count:,} {what}" for what, count in counts.items())
                line = f"{min(measured, seconds):.0f} of {seconds:.0f} s{rest}   {counted}"
            if console.is_terminal:
                live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
            elif at - last_line >= LINE_EVERY_S:
                last_line = at
                print(line, file=sys.stderr, flush=True)

        yield show_line


def _console() -> Console:
    """Return the console of stdout, wide enough for every table: a pipe counts as 80 columns."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, COLUMNS)
    return console


def _table(rows: tables.Rows) -> Table:
    table = Table(box=None, pad_edge=False)
    for index, title in enumerate(rows[0]):
        table.add_column(title, justify="right" if index and title else "left")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table


def show(report: Report, *, where: str | None = None) -> None:
    """Print the table of one run on stdout; its first line says whether the run is valid."""
    console = _console()
    console.print(Text(verdict(report), style="bold" if report["valid"] else "bold red"))
    console.print(tables.summary(report))
    for kind, count in report["requests"]["errors"].items():
        console.print(f"  {count:,} {kind}")
    console.print(_table([row[:4] for row in tables.percentiles(report) if row[0] in _ROWS]))
    for table in tables.by_dimension(report):
        console.print(_table(table))
    if (objective := tables.objective(report)) is not None:
        console.print(objective)
    if capacity := report.get("find_max"):
        console.print(_table(tables.curve(capacity)))
        console.print(tables.highest_rate(capacity))
    if where:
        console.print(f"report: {where}")


def show_comparison(compared: Comparison, failed: Unanswered, a: Report, b: Report) -> None:
    """Print the table of a comparison on stdout."""
    console = _console()
    if fields := plans_differ_in(a, b):
        console.print(f"the runs' plans differ in: {', '.join(fields)}")
    rows = [["", "A ms", "B ms", "B over A", "95 % interval"]]
    for d in compared.differences:
        interval = f"{percent(d.low)} to {percent(d.high)}"
        rows.append([d.percentile, number(d.a_ms), number(d.b_ms), percent(d.change), interval])
    for percentile, needed in compared.left_out.items():
        rows.append([percentile, "–", "–", "–", f"needs {needed:,} requests"])
    for name in ("achieved", "goodput"):
        one = a["rate"][name]
        two = b["rate"][name]
        rows.append([f"{name}/s", f"{one:,.1f}", f"{two:,.1f}", percent(two / one - 1) if one else "–", ""])
    change = f"{signed(100 * (failed.b - failed.a))} points"
    rows.append(["unanswered", f"{failed.a:.1%}", f"{failed.b:.1%}", change, ""])
    console.print(_table(rows))
