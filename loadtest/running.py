"""Runs a plan in a client process, which nothing else disturbs.

The process builds the requests, waits for the start, runs, and reports. Messages on its pipe are pairs: it
sends `ready`, `progress`, `result` and `failed`; the parent sends `go` and `stop`.
"""

import asyncio
import gc
import math
import multiprocessing
import os
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import uvloop

from headroom.loadtest import arrivals
from headroom.loadtest.alarm import clock
from headroom.loadtest.client import Address, Client
from headroom.loadtest.pairs import made_up_pairs, read_pairs
from headroom.loadtest.plan import LoadTestError, Plan
from headroom.loadtest.recorder import Recorder
from headroom.loadtest.workload import Workload

REPEATED_S = 1.0
"""Seconds in which further signals count as the first: `timeout` signals its command, and then its group."""

LEAD_S = 0.2
"""Seconds between the moment when the process is ready and the start."""

PROGRESS_S = 1.0
MAX_WINDOWS = 256

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a run early: Ctrl-C, `timeout` or a supervisor, and a terminal that closes."""

Look = tuple[float, float]
"""A time on `clock`, and the processor time that this process had used by then."""

Watcher = Callable[[float, Counter[str]], None]
"""Called about once a second with the seconds since the start of the warm-up, and the counts of requests that
are `in flight`, `sent`, `answered`, or failed with an error of that name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measurements of one run.

    seconds: length of the measured part; 0 for a burst at one time. cpu_share: share of one core that the
    client process used; None if the run was too short.
    """

    plan: Plan
    recorder: Recorder
    started_at: datetime
    seconds: float
    cpu_share: float | None
    interrupted: bool


def run(
    plan: Plan,
    watch: Watcher | None = None,
    began: Callable[[float], None] | None = None,
    interrupted: threading.Event | None = None,
) -> Outcome:
    """Run a plan whose rate is a number. Ctrl-C ends it early; the outcome is then of the part that ran.

    Args:
        watch: called with the progress.
        began: called once with the time on `clock` at which the measured part begins.
        interrupted: the caller's event of `interrupts`; None if the caller does not wait for it.

    Raises:
        LoadTestError: nothing answers at the URL, an input file is wrong, or the client process died.
    """
    address = find(plan.url)
    planned = arrivals.duration(plan)
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=client_process, args=(plan, address, theirs), daemon=True)
    with interrupts(interrupted) as interrupted:
        _start_without_signals(process)
        try:
            theirs.close()
            _receive(pipe)
            started_at = datetime.now(UTC)
            start = clock() + LEAD_S
            pipe.send(("go", start))
            if began is not None:
                began(start + plan.warmup)
            recorder, cpu_share, stopped = _follow(pipe, start, interrupted, watch)
            process.join(10)
        finally:
            process.kill()
    ran = planned if stopped is None else max(0.0, min(planned, stopped - start - plan.warmup))
    return Outcome(plan, recorder, started_at, ran, cpu_share, interrupted.is_set())


def find(url: str) -> Address:
    """Return the address and the port at which a server answers. Raises LoadTestError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            return connection.getpeername()[0], port
    except OSError as error:
        raise LoadTestError(f"nothing answers at {url}: {error.strerror or error}") from None


def _follow(
    pipe: Connection, start: float, interrupted: threading.Event, watch: Watcher | None
) -> tuple[Recorder, float | None, float | None]:
    """Return the process's measurements, its share of a core, and the time on `clock` at which it was told to
    send no more, None if it was not: later there are answers, which no request goes with."""
    stopped = None
    while True:
        if interrupted.is_set() and stopped is None:
            stopped = clock()
            pipe.send(("stop", None))
        if not pipe.poll(0.2):
            continue
        kind, value = _receive(pipe)
        if kind == "result":
            recorder, cpu_share = value
            return recorder, cpu_share, stopped
        if watch is not None:
            watch(clock() - start, value)


def _receive(pipe: Connection) -> tuple[str, Any]:
    try:
        kind, value = pipe.recv()
    except (EOFError, OSError):  # OSError: it died while it was sending
        raise LoadTestError("the client process died") from None
    if kind == "failed":
        raise LoadTestError(value)
    return kind, value


@contextmanager
def interrupts(shared: threading.Event | None = None) -> Iterator[threading.Event]:
    """Yield an event that one of SIGNALS sets; a later signal raises KeyboardInterrupt.

    shared: the event of a block around this one, which is then yielded again.
    """
    if shared is not None:
        yield shared
        return
    interrupted = threading.Event()
    first_at = math.inf

    def note(*_: object) -> None:
        nonlocal first_at
        if clock() > first_at + REPEATED_S:
            raise KeyboardInterrupt
        first_at = min(first_at, clock())
        interrupted.set()

    can_handle = threading.current_thread() is threading.main_thread()
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [number for number in SIGNALS if can_handle and not (number == signal.SIGHUP and is_nohup)]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_without_signals(process: SpawnProcess) -> None:
    """Start the process with SIGNALS blocked for all its life, imports included: its parent handles them."""
    resource_tracker.ensure_running()  # the first start would begin it, which unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def client_process(plan: Plan, address: Address, pipe: Connection) -> None:
    """Run the plan against the address; the parent stops or kills this process."""
    try:
        _allow_many_files()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_send_requests(plan, address, pipe))
    except LoadTestError as error:
        pipe.send(("failed", str(error)))
    except (BrokenPipeError, EOFError):  # the parent has ended
        os._exit(1)


def workload(plan: Plan) -> Workload:
    """Return the requests of a plan, with the API keys of the environment. Raises PlanError."""
    pairs = made_up_pairs(plan.seed) if plan.pairs is None else read_pairs(plan.pairs)
    keys = {
        name: os.environ.get(name, "").strip() for name in {traffic.api_key_env for traffic in plan.traffic}
    }
    return Workload(plan, pairs, keys)


async def _send_requests(plan: Plan, address: Address, pipe: Connection) -> None:
    requests = workload(plan).requests()
    measured = arrivals.duration(plan)
    recorder = Recorder(plan.warmup, window=_window(plan, measured, arrivals.expected(plan)))
    pipe.send(("ready", None))
    _, start = pipe.recv()
    end = start + plan.warmup + measured
    client = Client(plan, requests, recorder, address=address, start=start, end=end)
    loop = asyncio.get_running_loop()
    threading.Thread(target=_listen, args=(pipe, loop, client.stop), daemon=True).start()
    gc.freeze()  # these objects live until the end, so the collector need not visit them
    looks: list[Look] = []
    reporting = loop.create_task(_report_progress(client, recorder, looks, pipe))
    await client.run()
    reporting.cancel()
    if client.ran_out:
        recorder.not_sent(arrivals.count(plan) - recorder.scheduled)
    measured_looks = [look for look in looks if start + plan.warmup <= look[0] <= end + PROGRESS_S]
    pipe.send(("result", (recorder, _cpu_share(measured_looks))))


async def _report_progress(client: Client, recorder: Recorder, looks: list[Look], pipe: Connection) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        looks.append((clock(), time.process_time()))
        counts = {"in flight": client.in_flight, "sent": recorder.sent, "answered": recorder.ok}
        pipe.send(("progress", Counter({**counts, **recorder.errors})))


def _cpu_share(looks: list[Look]) -> float | None:
    """Return the share of one core used between the first look and the last; None with fewer than two."""
    if len(looks) < 2:
        return None
    spent = np.subtract(looks[-1], looks[0])
    return float(spent[1] / spent[0])


def _listen(pipe: Connection, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Wait for the parent's `stop`. An event loop would make the pipe non-blocking, and `send` fail."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os._exit(1)
    with suppress(RuntimeError):  # the run is over, and its loop closed
        loop.call_soon_threadsafe(stop)


def _window(plan: Plan, seconds: float, requests: float) -> float:
    """Return the length of the time line's windows.

    It is a second, or less in a run under a minute, which has about 60 windows. It is longer if a window
    would have fewer than 20 requests, or if the run with its last answers would have over MAX_WINDOWS.
    """
    usual = min(1.0, max(0.1, seconds / 60))
    with_few_requests = min(20 * seconds / requests, seconds / 20)
    return max(usual, with_few_requests, (seconds + plan.timeout) / MAX_WINDOWS)


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        wanted = hard if hard != resource.RLIM_INFINITY else 65_536
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, 65_536)), hard))
