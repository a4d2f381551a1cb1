"""Shows what a command is doing: its progress, tables, and the line that ends a long one on Ctrl-C.

rich is imported when needed, so that `--help` stays quick.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models import Classifier, HeadMask
    from models.classifier import Scores

EXIT_STATUS = 130
"""The exit status that shells report for a program that SIGINT ended."""

DELAY_S = 2.0
"""Work that takes less shows no progress."""

PORTION = 1024
"""Pairs that are scored between two movements of a bar."""

LINE_S = 15.0
"""Without a terminal, the progress of a long command is one line in this time."""


class _Display:
    """Shows on standard error how much is done: a bar in a terminal, else a line every LINE_S."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        line = TextColumn("{task.fields[words]}", markup=False)
        self._bar = Progress(line, BarColumn(), console=Console(stderr=True))
        self._restart()

    def _restart(self) -> None:
        self._task = self._bar.add_task("", total=1.0, words="")
        self._began = self._shown_at = time.monotonic()

    def _show(self, share: float, words: str, *, is_last: bool = False) -> None:
        """Show the words if it is time to. share: of the work, from 0 to 1."""
        now = time.monotonic()
        self._bar.update(self._task, completed=share, words=words)
        if now - self._began < DELAY_S:
            return
        if self._bar.console.is_terminal:
            self._bar.start()
        elif now - self._shown_at >= LINE_S or is_last:
            self._shown_at = now
            print(words, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar.live.is_started:
            self._bar.stop()


class Stages(_Display):
    """Shows the progress of work in stages, and the time left."""

    def start(self, what: str, total: int) -> None:
        """Begin the stage `what` of `total` steps."""
        self._what, self._total, self._done = what, max(total, 1), 0
        self._restart()

    def advance(self, steps: int = 1) -> None:
        """Count steps as done and, if it is time to, show the progress. Steps beyond the total raise it."""
        self._done += steps
        self._total = max(self._total, self._done)
        share = self._done / self._total
        seconds_left = (time.monotonic() - self._began) * (1 / share - 1) if share else 0.0
        words = f"{self._what}: {share:4.0%}, {_clock(seconds_left)} left"
        self._show(share, words, is_last=share == 1)


class Share(_Display):
    """Shows how much of the rows of files is scored, the pace and the time left."""

    def __init__(self) -> None:
        super().__init__()
        self._first: float | None = None

    def __call__(self, share: float, rows: int, before: int) -> None:
        """Show that a share of the job is done: `rows` rows, of which an earlier run did `before`."""
        if self._first is None:  # what an earlier run did tells nothing about this one's pace
            self._first = share * before / rows if rows else 0.0
        seconds = max(time.monotonic() - self._began, 1e-9)
        progress = share - self._first
        time_left = f", {_clock(seconds * (1 - share) / progress)} left" if progress > 0 and share < 1 else ""
        self._show(share, f"{share:.0%}, {rows:,} rows, {(rows - before) / seconds:,.0f}/s{time_left}")


@contextmanager
def counted(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of one stage. Yields a function that takes how many more of `total` are done."""
    with closing(Stages()) as stages:
        stages.start(what, total)
        yield stages.advance


def scored(clf: Classifier, pairs: Sequence[tuple[str, str]], mask: HeadMask | None = None) -> Scores:
    """Return the scores of at least one (query, title) pair."""
    import numpy as np

    logits = []
    with counted("pairs", len(pairs)) as advance:
        for start in range(0, len(pairs), PORTION):
            portion = pairs[start : start + PORTION]
            logits.append(clf.score(portion, mask).logits)
            advance(len(portion))
    return clf.scores(np.concatenate(logits))


@contextmanager
def ends_at_once(message: str) -> Iterator[None]:
    """End the process with EXIT_STATUS and one line on standard error when SIGINT comes; main thread only.

    message: the line. The body gets KeyboardInterrupt to close what it opened; threads and exit handlers are
    not waited for.
    """
    # A shell makes its background jobs ignore SIGINT; a SIGINT that is sent to one anyway should count.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{message}" if sys.stderr.isatty() else message, file=sys.stderr, flush=True)
        os._exit(EXIT_STATUS)
    finally:
        signal.signal(signal.SIGINT, handler)


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
