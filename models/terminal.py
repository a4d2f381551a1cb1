"""Shows what a command is doing: its progress, tables, and the line that ends a long one on Ctrl-C.

rich is imported when needed, so that `--help` stays quick.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import cache
from typing import Protocol

EXIT_STATUS = 130
"""The exit status that shells report for a program that SIGINT ended."""

DELAY_S = 2.0
"""Work that takes less shows no progress."""

LINE_S = 15.0
"""Without a terminal, the progress of a long command is one line after DELAY_S, and one in this time."""


class ProgressBar(Protocol):
    """Receives how far a long piece of work is."""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Begin the stage `what` of `total` steps; the stage before it is done.

        done: the steps that an earlier run did, which do not count for the pace.
        """

    def advance(self, steps: int = 1) -> None:
        """Count steps of the current stage as done."""


class Stages(ProgressBar):
    """Shows on standard error how much of a stage is done: a bar in a terminal, else a line every LINE_S."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        line = TextColumn("{task.fields[words]}", markup=False)
        self._bar = Progress(line, BarColumn(), console=Console(stderr=True))
        self.start("", 1)

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Begin a stage."""
        self._what = what
        self._total = max(total, 1)
        self._done = done
        self._before = done / self._total
        self._task = self._bar.add_task("", total=1.0, words="")
        self.began = time.monotonic()
        self._shown_at = self.began + DELAY_S - LINE_S

    def advance(self, steps: int = 1) -> None:
        """Count steps as done and show the progress. Steps beyond the total raise it."""
        self._done += steps
        self._total = max(self._total, self._done)
        self.show_words(self._what, self._done / self._total, self._before)

    def show_words(self, what: str, share: float, before: float) -> None:
        """Show these words, the share and the time left, if it is time to.

        share, before: from 0 to 1, what is done, and how much of it an earlier run did.
        """
        now = time.monotonic()
        words = f"{what}: {share:4.0%}"
        if share > before:
            seconds_left = (now - self.began) * (1 - share) / (share - before)
            words += f", {timedelta(seconds=round(seconds_left))} left"
        self._bar.update(self._task, completed=share, words=words)
        if now - self.began < DELAY_S:
            return
        if self._bar.console.is_terminal:
            self._bar.start()
        elif now - self._shown_at >= LINE_S or share == 1:
            self._shown_at = now
            print(words, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar.live.is_started:
            self._bar.stop()


def warn(text: str) -> None:
    """Print a line on standard error."""
    print(f"headroom: {text}", file=sys.stderr)


_PLAIN = str.maketrans({"−": "-", "–": "-", "…": "...", "×": "x", "≥": ">=", "≤": "<=", "’": "'"})


def write_what_the_terminal_can() -> None:
    """Write characters that the terminal's encoding lacks as ASCII ones, or if there is none, as escapes.

    In JSON all are escapes, which mean the same.
    """
    codecs.register_error("headroom", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "headroom":
            stream.reconfigure(errors="headroom")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    if error.object.lstrip()[:1] not in ("{", "["):
        text = text.translate(_PLAIN)
    return json.dumps(text)[1:-1], error.end


@cache
def warn_once(text: str) -> None:
    """Print a line on standard error, unless this process has printed it before."""
    warn(text)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on standard error what takes longer than DELAY_S, and for how long; once more in each LINE_S."""
    began = time.monotonic()
    ended = threading.Event()

    def speak() -> None:
        pause = DELAY_S
        while not ended.wait(pause):
            print(f"{what}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            pause = LINE_S

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()


@contextmanager
def counted(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of one stage. Yields a function that takes how many more of `total` are done."""
    with closing(Stages()) as stages:
        stages.start(what, total)
        yield stages.advance


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


def table(rows: Sequence[Sequence[str]], *, numbers_from: int | None = None) -> str:
    """Return the rows as lines of aligned columns, however wide.

    numbers_from: the first of the columns that are aligned to the right.
    """
    from rich.cells import cell_len, set_cell_size

    def aligned(cell: str, width: int, column: int) -> str:
        is_number = numbers_from is not None and column >= numbers_from
        return cell.rjust(width) if is_number else set_cell_size(cell, width)

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(aligned, row, widths, range(len(widths)))).rstrip() for row in rows)
