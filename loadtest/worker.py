"""A client process: builds its share of the requests, waits for the common start, runs, and reports.

Messages on the pipe are pairs. The process sends `ready`, `progress`, `result` and `failed`; the parent sends
`go` and `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from loadtest import arrivals
from loadtest.alarm import clock
from loadtest.client import Client
from loadtest.errors import LoadTestError
from loadtest.histogram import Histogram
from loadtest.pairs import made_up_pairs, read_pairs
from loadtest.plan import Plan
from loadtest.recorder import Recorder
from loadtest.workload import Workload

PROGRESS_S = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """The input of one process."""

    plan: Plan
    address: str
    process: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a process: counts of the measured part, and times of the last full second."""

    scheduled: int
    sent: int
    ok: int
    errors: dict[str, int]
    in_flight: int
    p50_ms: float | None
    p99_ms: float | None


@dataclass(slots=True)
class Result:
    """The measurements of a process. cpu_share: share of one core it used; None if the run was too short."""

    recorder: Recorder
    cpu_share: float | None
    stopped_early: bool


def main(job: Job, pipe: Connection) -> None:
    """Run the process; the parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _allow_many_files()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(job, pipe))
    except LoadTestError as error:
        pipe.send(("failed", str(error)))
    except (BrokenPipeError, EOFError):  # the parent has ended
        os._exit(1)


async def _run(job: Job, pipe: Connection) -> None:
    plan = job.plan
    pairs = made_up_pairs(plan.seed) if plan.pairs is None else read_pairs(plan.pairs)
    keys = {name: os.environ.get(name, "") for name in {traffic.api_key_env for traffic in plan.traffic}}
    requests = Workload(plan, pairs, keys).requests(job.process, plan.processes)
    seconds = plan.warmup + arrivals.duration(plan)
    measured = seconds - plan.warmup
    recorder = Recorder(plan.warmup, window=_first_window(measured, arrivals.expected(plan) / measured))
    pipe.send(("ready", None))
    _, start = pipe.recv()
    client = Client(
        plan,
        requests,
        recorder,
        address=job.address,
        start=start,
        seconds=seconds,
        connections=-(-plan.connections // plan.processes),
    )
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        client.stop()

    loop = asyncio.get_running_loop()
    threading.Thread(target=_listen, args=(pipe, loop, stop), daemon=True).start()
    gc.freeze()  # these objects live until the end, so the collector need not visit them
    cpu = _Cpu(start + plan.warmup, start + seconds)
    watch = loop.create_task(_watch(client, recorder, pipe, cpu))
    await client.run()
    watch.cancel()
    if client.ran_out:
        recorder.not_sent(arrivals.count(plan, job.process, plan.processes) - recorder.scheduled)
    pipe.send(("result", Result(recorder, cpu.share, stopped)))


def _listen(pipe: Connection, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Wait for the parent's `stop`. An event loop would make the pipe non-blocking, and `send` fail."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os._exit(1)
    with contextlib.suppress(RuntimeError):  # the run is over, and its loop closed
        loop.call_soon_threadsafe(stop)


async def _watch(client: Client, recorder: Recorder, pipe: Connection, cpu: _Cpu) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        cpu.tick()
        latency = recorder.windows[-2].latency if len(recorder.windows) > 1 else Histogram()
        percentiles = [latency.percentile_ms(percent) for percent in (50, 99)]
        progress: Any = Progress(
            recorder.scheduled,
            recorder.sent,
            recorder.ok,
            dict(recorder.errors),
            client.in_flight,
            *percentiles,
        )
        pipe.send(("progress", progress))


class _Cpu:
    """Measures the process's CPU time between two moments as a share of one core."""

    def __init__(self, begin: float, end: float) -> None:
        self._begin, self._end = begin, end
        self._first: tuple[float, float] | None = None
        self.share: float | None = None

    def tick(self) -> None:
        now = (clock(), time.process_time())
        if not self._begin <= now[0] <= self._end + PROGRESS_S:
            return
        if self._first is None:
            self._first = now
        else:
            self.share = (now[1] - self._first[1]) / (now[0] - self._first[0])


def _first_window(seconds: float, rate: float) -> float:
    """Return a window for about 60 points, or a second for longer runs; longer if requests are few."""
    return max(min(1.0, max(0.1, seconds / 60)), min(20 / rate, seconds / 20))


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        wanted = hard if hard != resource.RLIM_INFINITY else 65_536
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, 65_536)), hard))
