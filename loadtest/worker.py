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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvloop

from loadtest import arrivals
from loadtest.alarm import clock
from loadtest.client import Client
from loadtest.pairs import made_up_pairs, read_pairs
from loadtest.plan import LoadTestError, Plan
from loadtest.recorder import Recorder
from loadtest.workload import Workload

PROGRESS_S = 1.0
MAX_WINDOWS = 256


@dataclass(slots=True)
class Result:
    """The measurements of a process. cpu_share: share of one core it used; None if the run was too short."""

    recorder: Recorder
    cpu_share: float | None


def main(plan: Plan, address: str, number: int, pipe: Connection) -> None:
    """Run process `number` of the plan against the address; the parent handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _allow_many_files()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(plan, address, number, pipe))
    except LoadTestError as error:
        pipe.send(("failed", str(error)))
    except (BrokenPipeError, EOFError):  # the parent has ended
        os._exit(1)


async def _run(plan: Plan, address: str, number: int, pipe: Connection) -> None:
    pairs = made_up_pairs(plan.seed) if plan.pairs is None else read_pairs(plan.pairs)
    keys = {name: os.environ.get(name, "") for name in {traffic.api_key_env for traffic in plan.traffic}}
    requests = Workload(plan, pairs, keys).requests(number, plan.processes)
    measured = arrivals.duration(plan)
    recorder = Recorder(plan.warmup, window=_window(plan, measured, arrivals.expected(plan) / measured))
    pipe.send(("ready", None))
    _, start = pipe.recv()
    end = start + plan.warmup + measured
    client = Client(plan, requests, recorder, address=address, start=start, end=end)
    loop = asyncio.get_running_loop()
    threading.Thread(target=_listen, args=(pipe, loop, client.stop), daemon=True).start()
    gc.freeze()  # these objects live until the end, so the collector need not visit them
    cpu_share: float | None = None

    async def watch() -> None:
        nonlocal cpu_share
        first: tuple[float, float] | None = None
        while True:
            await asyncio.sleep(PROGRESS_S)
            now = (clock(), time.process_time())
            if start + plan.warmup <= now[0] <= end + PROGRESS_S:
                if first is not None:
                    cpu_share = (now[1] - first[1]) / (now[0] - first[0])
                first = first or now
            counts = {"in flight": client.in_flight, "sent": recorder.sent, "answered": recorder.ok}
            pipe.send(("progress", Counter({**counts, **recorder.errors})))

    watching = loop.create_task(watch())
    await client.run()
    watching.cancel()
    if client.ran_out:
        recorder.not_sent(arrivals.count(plan, number, plan.processes) - recorder.scheduled)
    pipe.send(("result", Result(recorder, cpu_share)))


def _listen(pipe: Connection, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Wait for the parent's `stop`. An event loop would make the pipe non-blocking, and `send` fail."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os._exit(1)
    with contextlib.suppress(RuntimeError):  # the run is over, and its loop closed
        loop.call_soon_threadsafe(stop)


def _window(plan: Plan, seconds: float, rate: float) -> float:
    """Return the length of the time line's windows.

    It is a second, or less for about 60 windows in a shorter run. It is longer if requests are few, and so
    long that the whole run with its last answers has MAX_WINDOWS.
    """
    usual = max(min(1.0, max(0.1, seconds / 60)), min(20 / rate, seconds / 20))
    return max(usual, (seconds + plan.timeout) / MAX_WINDOWS)


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        wanted = hard if hard != resource.RLIM_INFINITY else 65_536
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, 65_536)), hard))
