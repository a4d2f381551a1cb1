"""Runs jobs in processes that a test may kill; they start quickly, because torch is imported once for all."""

import multiprocessing
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headroom.models.commands.options import Network
from headroom.models.quality.labelled import DEFAULT, Columns
from headroom.service.cli import score_files
from headroom.service.files.reading import WINDOW_ROWS
from headroom.service.files.running import Summary, run

START = -1
"""What a job sends before its first window."""


@dataclass(frozen=True)
class Arguments:
    """The command line of a job, as `score_files` takes it."""

    source: str
    output: str
    model: str
    columns: Columns = DEFAULT
    mask: str | None = None
    variant: str | None = None
    config: Path | None = None
    overwrite: bool = False


def arguments(source: Path, output: Path, model: Path, **options: Any) -> Arguments:
    return Arguments(str(source), str(output), str(model), **options)


def score_all(job: Arguments, report: Callable[[float, int, int], None], *, window_rows: int) -> Summary:
    """Do what `headroom score --input` does, with windows of so many rows."""
    network = Network(job.model, job.config, job.variant, job.mask, "cpu", "float32")
    options = score_files.options_of(network, job.columns, prefix="")
    prepared, scorer = score_files.prepared(job.source, job.output, options)
    return run(replace(prepared, window_rows=window_rows), scorer, report, overwrite=job.overwrite)


@dataclass
class Child:
    """A process with a job, which tells how many rows are done after each window and waits for an answer."""

    process: Any
    events: Connection

    def event(self) -> Any:
        """Return what the job tells next, and let it go on. Raises EOFError after its end."""
        told = self.events.recv()
        if isinstance(told, int):  # the last word is none
            self.events.send(None)
        return told

    def to_the_end(self) -> list[Any]:
        """Let the job go on to its end, and return what it tells."""
        events: list[Any] = []
        try:
            while True:
                events.append(self.event())
        except EOFError:
            self.process.join()
        return events

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    @property
    def was_killed(self) -> bool:
        return bool(self.process.exitcode == -signal.SIGKILL)


def start(job: Arguments, *, window_rows: int, file_bytes: int | None = None) -> Child:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.service.files.killed", "headroom.service.files.scoring"])
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(job, theirs, window_rows, file_bytes))
    process.start()
    theirs.close()
    return Child(process, ours)


def peak_bytes(job: Arguments) -> int:
    """Run a job to its end and return the peak of its resident memory."""
    last = start(job, window_rows=WINDOW_ROWS).to_the_end()[-1]
    assert isinstance(last, tuple), last
    return int(last[1])


def _run(job: Arguments, events: Connection, window_rows: int, file_bytes: int | None) -> None:
    if file_bytes is not None:  # what a full disk does: the next byte is an OSError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    def tell(what: int) -> None:
        events.send(what)
        events.recv()

    tell(START)
    try:
        score_all(job, lambda _share, rows, _before: tell(rows), window_rows=window_rows)
    except Exception as error:
        events.send(str(error))
    else:
        events.send(("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
