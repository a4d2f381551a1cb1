"""Runs a plan from the parent process: starts the client processes, watches them, merges their results."""

from __future__ import annotations

import multiprocessing
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any
from urllib.parse import urlsplit

from loadtest import arrivals, worker
from loadtest.alarm import clock
from loadtest.errors import LoadTestError
from loadtest.plan import Plan
from loadtest.recorder import Recorder

LEAD_S = 0.2
"""Seconds between the moment when all processes are ready and the common start."""

Watcher = Callable[[float, list[worker.Progress]], None]
"""Called about once a second with the seconds since the start of the warm-up and each process's state."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measurements of one run.

    seconds: length of the measured part. cpu_share: share of one core that the busiest client process used.
    """

    plan: Plan
    recorder: Recorder
    started_at: datetime
    seconds: float
    cpu_share: float | None
    interrupted: bool


def run(plan: Plan, watch: Watcher | None = None, began: Callable[[float], None] | None = None) -> Outcome:
    """Run a plan whose rate is a number. Ctrl-C ends it early; the outcome is then of the part that ran.

    Args:
        watch: called with the progress.
        began: called once with the time on `clock` at which the measured part begins.

    Raises:
        LoadTestError: nothing answers at the URL, an input file is wrong, or a client process died.
    """
    address = find(plan.url)
    planned = arrivals.duration(plan)
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    with _interrupts() as interrupt:
        try:
            for number in range(plan.processes):
                ours, theirs = context.Pipe()
                job = worker.Job(plan, address, number)
                process = context.Process(target=worker.main, args=(job, theirs), daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
            for pipe in pipes:
                _receive(pipe)
            started_at, start = datetime.now(UTC), clock() + LEAD_S
            for pipe in pipes:
                pipe.send(("go", start))
            if began is not None:
                began(start + plan.warmup)
            results = _follow(pipes, start, interrupt, watch)
            ended = clock()
            for process in processes:
                process.join(10)
        finally:
            for process in processes:
                process.kill()
    interrupted = any(result.stopped_early for result in results)
    recorder = results[0].recorder
    for result in results[1:]:
        recorder.add(result.recorder)
    shares = [result.cpu_share for result in results if result.cpu_share is not None]
    ran = max(1e-9, min(planned, ended - start - plan.warmup)) if interrupted else planned
    return Outcome(plan, recorder, started_at, ran, max(shares, default=None), interrupted)


def find(url: str) -> str:
    """Return the address at which a server answers. Raises LoadTestError."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            return str(connection.getpeername()[0])
    except OSError as error:
        raise LoadTestError(f"nothing answers at {url}: {error.strerror or error}") from None


def _follow(
    pipes: Sequence[Connection], start: float, interrupt: Interrupt, watch: Watcher | None
) -> list[worker.Result]:
    states: list[worker.Progress | None] = [None] * len(pipes)
    results: list[worker.Result | None] = [None] * len(pipes)
    told = False
    while None in results:
        if interrupt.seen and not told:
            told = True
            for pipe, result in zip(pipes, results, strict=True):
                if result is None:
                    pipe.send(("stop", None))
        running = [pipe for pipe, result in zip(pipes, results, strict=True) if result is None]
        for readable in wait(running, timeout=0.2):
            place = next(number for number, pipe in enumerate(pipes) if pipe is readable)
            kind, value = _receive(pipes[place])
            if kind == "result":
                results[place] = value
            else:
                states[place] = value
                if watch is not None and place == len(pipes) - 1:
                    watch(clock() - start, [state for state in states if state is not None])
    return [result for result in results if result is not None]


def _receive(pipe: Connection) -> tuple[str, Any]:
    try:
        kind, value = pipe.recv()
    except (EOFError, OSError):  # OSError: it died while it was sending
        raise LoadTestError("a client process died") from None
    if kind == "failed":
        raise LoadTestError(value)
    return kind, value


class Interrupt:
    """Remembers whether Ctrl-C or SIGTERM came."""

    def __init__(self) -> None:
        self.seen = False

    def note(self, *_: object) -> None:
        """Handle a signal; the second one ends the process at once."""
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True


@contextmanager
def _interrupts() -> Iterator[Interrupt]:
    interrupt = Interrupt()
    try:
        before = {number: signal.signal(number, interrupt.note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, which alone may handle signals
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
