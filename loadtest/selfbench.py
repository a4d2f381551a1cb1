"""Measures the load tester itself: `python -m loadtest.selfbench`; the results are in docs/load-testing.md.

There are three parts. `clients` compares our client with aiohttp on uvloop on one core, in turns, as fast as
answers come (closed loop, 64 connections). `rate` measures whether the client is on time at 5,000 requests/s
for 30 s (open loop). `percentiles` compares reported with true percentiles on servers with known delays.
Client and server are each pinned to a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import uvloop

from loadtest import machine
from loadtest.plan import make_plan
from loadtest.running import run
from loadtest.wire import Answer, Connection
from loadtest.workload import Request, Workload

CONNECTIONS = 64
ROUND_S = 4.0
TARGET_RATE = 5000.0
TARGET_LAG_MS = 1.0
TARGET_ERROR = 0.02


def clients(rounds: int) -> dict[str, Any]:
    """Return the requests per second of each client in each round."""
    with _server() as url:
        rates: dict[str, list[float]] = {"ours": [], "aiohttp": []}
        for _ in range(rounds):
            for name, measure in (("ours", _ours), ("aiohttp", _aiohttp)):
                rates[name].append(_in_a_process(measure, url))
    ratios = [ours / theirs for ours, theirs in zip(rates["ours"], rates["aiohttp"], strict=True)]
    return {"requests_per_second": rates, "ratio": statistics.median(ratios), "ratios": ratios}


def rate(seconds: float) -> dict[str, Any]:
    """Return the send lag at 5,000 requests/s."""
    with _server() as url:
        plan = {"url": url, "rate": TARGET_RATE, "duration": seconds, "warmup": 2, "traffic": [{"titles": 1}]}
        outcome = run(make_plan(plan))
    recorder = outcome.recorder
    return {
        "intended": recorder.scheduled / outcome.seconds,
        "achieved": recorder.ok / outcome.seconds,
        "send_lag_ms": recorder.send_lag.summary_ms(),
        "latency_ms": recorder.latency().summary_ms(),
        "cpu_share": outcome.cpu_share,
        "met": bool((recorder.send_lag.percentile_ms(99) or 0.0) <= TARGET_LAG_MS),
    }


def percentiles(seconds: float) -> dict[str, Any]:
    """Return (reported, true) milliseconds by delay and percentile."""
    by_delay: dict[str, dict[str, tuple[float, float]]] = {}
    for name, delays, truth in (
        ("100 ms", ["100ms"], {50: 100, 90: 100, 99: 100}),
        ("100 and 200 ms, 3 to 1", ["100ms"] * 3 + ["200ms"], {50: 100, 70: 100, 80: 200, 99: 200}),
    ):
        with _server(*delays) as url:
            plan = {"url": url, "rate": 100, "duration": seconds, "warmup": 1, "traffic": [{"titles": 1}]}
            latency = run(make_plan({**plan, "arrivals": "constant"})).recorder.latency()
        by_delay[name] = {
            f"p{p}": (latency.percentile_ms(p) or 0.0, float(true)) for p, true in truth.items()
        }
    worst = max(abs(got / true - 1) for pairs in by_delay.values() for got, true in pairs.values())
    return {"delays": by_delay, "largest_error": worst, "met": worst <= TARGET_ERROR}


def main() -> int:
    """Run the program. Exit status 1 if `--check` finds a missed target."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.selfbench", description=__doc__)
    parser.add_argument("--only", choices=("clients", "rate", "percentiles"))
    parser.add_argument("--quick", action="store_true", help="a third of the time, for a first look")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    share = 3 if arguments.quick else 1
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "clients": lambda: clients(6 // share),
        "rate": lambda: rate(30 / share),
        "percentiles": lambda: percentiles(15 / share),
    }
    chosen = [arguments.only] if arguments.only else list(parts)
    results: dict[str, Any] = {"schema": 1, "machine": machine.describe()}
    for name in chosen:
        print(f"selfbench: {name}", file=sys.stderr)
        results[name] = parts[name]()
    print(json.dumps(results, indent=1))
    missed = [name for name in chosen if not results[name].get("met", True)]
    if missed:
        print(f"selfbench: target missed: {', '.join(missed)}", file=sys.stderr)
    return int(bool(missed and arguments.check))


@contextmanager
def _server(*delays: str) -> Iterator[str]:
    """Run a reference server, on a core of its own if there are two."""
    command = [sys.executable, "-m", "loadtest.reference_server"]
    for delay in delays:
        command += ["--delay", delay]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    try:
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[:1])
            os.sched_setaffinity(process.pid, cores[1:2])
        yield process.stdout.readline().strip()
    finally:
        if len(cores) > 1:
            os.sched_setaffinity(0, cores)
        process.stdout.close()
        process.terminate()
        process.wait()


def _in_a_process(measure: Callable[[str], float], url: str) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (url,))


def _requests(url: str) -> Iterator[Request]:
    plan = make_plan({"url": url, "rate": 1e6, "duration": "1h", "warmup": 0, "traffic": [{"titles": 1}]})
    return Workload(plan, [("angle bracket", "Simpson Strong-Tie 12-Gauge Angle")], {}).requests()


def _ours(url: str) -> float:
    """Return answers per second of our protocol if each connection sends again at once."""
    port = urlsplit(url).port or 80
    request = next(_requests(url))
    answers = 0

    class Loop:
        def answered(self, connection: Connection, request: Request, _answer: Answer) -> None:
            nonlocal answers
            answers += 1
            connection.send(request)

        def failed(self, _request: Request, kind: str, _at: float) -> None:
            raise RuntimeError(kind)

        def ended(self, connection: Connection) -> None:
            """Do nothing: the end of the measurement closes all connections."""

    async def measure() -> float:
        loop, owner = asyncio.get_running_loop(), Loop()
        for _ in range(CONNECTIONS):
            _, connection = await loop.create_connection(lambda: Connection(owner), "127.0.0.1", port)
            connection.send(request)
        await asyncio.sleep(0.5)
        before, started = answers, time.perf_counter()
        await asyncio.sleep(ROUND_S)
        return (answers - before) / (time.perf_counter() - started)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure())


def _aiohttp(url: str) -> float:
    """Return the same for aiohttp."""
    import aiohttp

    body = next(_requests(url)).payload.partition(b"\r\n\r\n")[2]
    headers = {"content-type": "application/json"}
    answers = 0

    async def send_on(session: aiohttp.ClientSession) -> None:
        nonlocal answers
        while True:
            async with session.post(f"{url}/v1/score", data=body, headers=headers) as response:
                await response.read()
            answers += 1

    async def measure() -> float:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS)
        async with aiohttp.ClientSession(connector=connector) as session:
            tasks = [asyncio.create_task(send_on(session)) for _ in range(CONNECTIONS)]
            await asyncio.sleep(0.5)
            before, started = answers, time.perf_counter()
            await asyncio.sleep(ROUND_S)
            result = (answers - before) / (time.perf_counter() - started)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return result

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure())


if __name__ == "__main__":
    sys.exit(main())
