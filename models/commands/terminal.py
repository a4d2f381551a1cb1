"""Progress bars and tables of the commands. rich is imported when needed, so that `--help` stays quick."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY_S = 2.0
"""A terminal shows no bar for work that takes less."""

LINE_S = 15.0
"""Without a terminal, the progress of a long command is one line in this time."""


@contextmanager
def progress(line: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error; without a terminal, only its last state is printed.

    line: text with `{task.completed}` and `{task.total}` in it. Yields a function that takes how many of
    `total` are done.
    """
    bar = _bar(line)
    task = bar.add_task("", total=total)
    began = time.monotonic()

    def advance(done: int) -> None:
        bar.update(task, completed=done)
        if not bar.console.is_terminal or time.monotonic() - began > DELAY_S:
            bar.start()  # does nothing if it runs

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def counted(line: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar as `progress` does. Yields a function that takes how many more of `total` are done."""
    done = 0
    with progress(line, total) as show:

        def add(count: int) -> None:
            nonlocal done
            done = min(total, done + count)
            show(done)

        yield add


class Stages:
    """Shows the progress of work in stages, and the time left, on standard error.

    A terminal shows a bar for each stage; anything else gets a line every LINE_S.
    """

    def __init__(self) -> None:
        self._bar = _bar("{task.description}{task.fields[forecast]}")
        self._plan: list[tuple[str, float]] = []

    def expect(self, plan: Sequence[tuple[str, float]], words: str) -> None:
        """Say how long the work will take. plan: the stages with their seconds; words: the sum."""
        self._plan = list(plan)
        print(
            f"This takes {words} here, by the speed of a first batch, or less if an earlier run left results "
            "in cache/.",
            file=sys.stderr,
            flush=True,
        )

    def start(self, what: str, total: int) -> None:
        """Begin the stage `what` of `total` steps."""
        names = [name for name, _ in self._plan]
        if what in names:
            self._plan = self._plan[names.index(what) + 1 :]
        self._what, self._total, self._done = what, max(total, 1), 0
        self._task = self._bar.add_task(what, total=self._total, forecast="")
        self._began = self._shown_at = time.monotonic()

    def advance(self, steps: int = 1) -> None:
        """Count steps as done and, if it is time to, show the progress. Steps beyond the total raise it."""
        self._done += steps
        self._total = max(self._total, self._done)
        now = time.monotonic()
        seconds_left = (now - self._began) * (self._total - self._done) / self._done
        later = sum(seconds for _, seconds in self._plan)
        forecast = f"; in all about {_clock(seconds_left + later)} left" if later else ""
        is_done = self._done >= self._total
        self._bar.update(
            self._task, total=self._total, completed=self._done, forecast="" if is_done else forecast
        )
        if now - self._began < DELAY_S:
            return
        if self._bar.console.is_terminal:
            self._bar.start()
        elif now - self._shown_at >= LINE_S or is_done:
            self._shown_at = now
            line = f"{self._what}: {self._done / self._total:4.0%}, {_clock(seconds_left)} left{forecast}"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar.live.is_started:
            self._bar.stop()


class Share:
    """Shows how much of a long job is done, its pace and the time left, on standard error.

    A terminal shows a bar; anything else gets a line every LINE_S.
    """

    def __init__(self) -> None:
        self._bar = _bar("{task.fields[words]}", forecast=False)
        self._task = self._bar.add_task("", total=1.0, words="")
        self._began = self._shown_at = time.monotonic()
        self._first: float | None = None

    def __call__(self, share: float, rows: int, before: int) -> None:
        """Show that a share of the job is done: `rows` rows, of which an earlier run did `before`."""
        now = time.monotonic()
        if self._first is None:  # what an earlier run did tells nothing about this one's pace
            self._first = share * before / rows if rows else 0.0
        seconds = max(now - self._began, 1e-9)
        progress = share - self._first
        time_left = f", {_clock(seconds * (1 - share) / progress)} left" if progress > 0 and share < 1 else ""
        words = f"{share:.0%}, {rows:,} rows, {(rows - before) / seconds:,.0f}/s{time_left}"
        self._bar.update(self._task, completed=share, words=words)
        if now - self._began < DELAY_S:
            return
        if self._bar.console.is_terminal:
            self._bar.start()
        elif now - self._shown_at >= LINE_S:
            self._shown_at = now
            print(words, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar.live.is_started:
            self._bar.stop()


def _bar(line: str, *, forecast: bool = True) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(line, markup=False), BarColumn(), *((TimeRemainingColumn(),) if forecast else ()))
    return Progress(*columns, console=Console(stderr=True))


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def table(rows: Sequence[Sequence[str]], *, numbers_from: int | None = None) -> str:
    """Return the rows as lines of aligned columns, however wide.

    numbers_from: the first of the columns that are aligned to the right.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for i in range(len(rows[0])):
        is_number = numbers_from is not None and i >= numbers_from
        grid.add_column(no_wrap=True, justify="right" if is_number else "left")
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(width=10_000, color_system=None)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
