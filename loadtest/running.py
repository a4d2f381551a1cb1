"""Runs a plan from the parent process: starts the client processes, watches them, merges their results."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import threading
from collections import Counter
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
from loadtest.plan import LoadTestError, Plan
from loadtest.recorder import Recorder

LEAD_S = 0.2
"""Seconds between the moment when all processes are ready and the common start."""

Watcher = Callable[[float, Counter[str]], None]
"""Called about once a second with the seconds since the start of the warm-up, and the counts of requests that
are `in flight`, `sent`, `answered`, or failed with an error of that name."""


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
    with _interrupts() as interrupted:
        try:
            for number in range(plan.processes):
                ours, theirs = context.Pipe()
                work = (plan, address, number, theirs)
                process = context.Process(target=worker.main, args=work, daemon=True)
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
            results = _follow(pipes, start, interrupted, watch)
            ended = clock()
            for process in processes:
                process.join(10)
        finally:
            for process in processes:
                process.kill()
    recorder = results[0].recorder
    for result in results[1:]:
        recorder.add(result.recorder)
    cpu_share = max((r.cpu_share for r in results if r.cpu_share is not None), default=None)
    is_cut = interrupted.is_set()
    ran = max(1e-9, min(planned, ended - start - plan.warmup)) if is_cut else planned
    return Outcome(plan, recorder, started_at, ran, cpu_share, is_cut)


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
    pipes: Sequence[Connection], start: float, interrupted: threading.Event, watch: Watcher | None
) -> list[worker.Result]:
    states: dict[Connection, Counter[str]] = {}
    results: dict[Connection, worker.Result] = {}
    told = False
    while len(results) < len(pipes):
        working = [pipe for pipe in pipes if pipe not in results]
        if interrupted.is_set() and not told:
            told = True
            for pipe in working:
                pipe.send(("stop", None))
        readable = wait(working, timeout=0.2)
        for pipe in [pipe for pipe in working if pipe in readable]:
            kind, value = _receive(pipe)
            if kind == "result":
                results[pipe] = value
                continue
            states[pipe] = value
            if watch is not None and pipe is pipes[-1]:
                watch(clock() - start, sum(states.values(), Counter()))
    return list(results.values())


def _receive(pipe: Connection) -> tuple[str, Any]:
    try:
        kind, value = pipe.recv()
    except (EOFError, OSError):  # OSError: it died while it was sending
        raise LoadTestError("a client process died") from None
    if kind == "failed":
        raise LoadTestError(value)
    return kind, value


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or SIGTERM sets; the second one ends the process at once."""
    interrupted = threading.Event()

    def note(*_: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    can_handle = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if can_handle else ()
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
