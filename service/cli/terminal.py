"""Progress bars and tables of the commands. rich is imported when needed, so that `--help` stays quick."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

DELAY_S = 2.0
"""A terminal shows no bar for work that takes less."""


@contextmanager
def progress(line: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error; without a terminal, only its last state is printed.

    line: text with `{task.completed}` and `{task.total}` in it. Yields a function that takes how many of
    `total` are done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(TextColumn(line, markup=False), BarColumn(), TimeRemainingColumn(), console=console)
    task = bar.add_task("", total=total)
    began = time.monotonic()

    def advance(done: int) -> None:
        bar.update(task, completed=done)
        if not console.is_terminal or time.monotonic() - began > DELAY_S:
            bar.start()  # does nothing if it runs

    try:
        yield advance
    finally:
        bar.stop()


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
