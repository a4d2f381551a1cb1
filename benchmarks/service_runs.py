"""The measurements of our server, each against a running `headroom serve` and the model alone."""

from __future__ import annotations

import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.crowd import Loop, ModelAlone, Requests, server_memory, wait_for_variant
from benchmarks.load_runs import LoadRuns
from loadtest import beside, find_max, running
from loadtest.plan import Plan
from loadtest.running import Outcome

TITLES = 20
MANY_TITLES = 1000
LONG_WORDS = 650
"""Words of a title five times as long as the model's window; 1,000 of them make a body of 3.8 MB."""

DEADLINE_MS = 2000.0
SATURATING = 1.5
"""Rate that is sent for throughput, relative to the rate that saturates the server."""

CROWD_RATE = 8.0
"""Requests per second with a single title, in the mixed traffic."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds of each measurement.

    fill: seconds before it, until the queue has its final length. max_lag: how late the load generator may
    send a request before a run is invalid.
    """

    fill: float = 3.0
    saturate: float = 6.0
    idle: float = 8.0
    overload: float = 20.0
    crowd: float = 15.0
    memory: float = 3.0
    max_lag: float = 0.05


@dataclass(frozen=True, slots=True)
class Server:
    """A running `headroom serve`.

    pid: process id of the driver. start_s: seconds until it was ready. config: its config file.
    """

    url: str
    pid: int
    start_s: float
    config: Path


def plan_for(server: Server, lengths: Lengths) -> Plan:
    """Return the plan that all measurements vary."""
    lag = lengths.max_lag
    return Plan(url=server.url, timeout=5.0, connections=4096, warmup=1.0, max_lag=lag, slo="p99=1s")


@contextmanager
def served(
    config: Path, scratch: Path, model: Path | None = None, replicas: int | None = None
) -> Iterator[Server]:
    """Run our server on a free port until the block ends, with a copy of the config that may be edited.

    model, replicas: values that replace the config's.
    """
    own = Path(shutil.copy(config, scratch / "serve.yaml"))
    port = beside.free_port()
    url = f"http://127.0.0.1:{port}"
    program = Path(sys.executable).with_name("headroom")
    database = f"HEADROOM_DATABASE_URL=sqlite:///{scratch}/experiments.db"
    began = time.monotonic()
    command = f"env {database} {program} serve --port {port} --config {own}"
    if model is not None:
        command += f" --model {model}"
    if replicas is not None:
        command += f" --replicas {replicas}"
    with beside.started_server(command, url) as pid:
        yield Server(url, pid, time.monotonic() - began, own)


Start = Callable[..., AbstractContextManager[Server]]
"""Starts a server as `served` does, which takes the same arguments."""


def saturated(plan: Plan, alone: ModelAlone, rounds: int, lengths: Lengths) -> dict[str, Any]:
    """Measure throughput with requests of 20 titles, and of the model alone with the same pairs, in turns.

    `share` in the result is the HTTP throughput over the model's. It is corrected for the processor time that
    the load generator takes from the server; `raw_share` is not.
    """
    probe = plan.changed(duration=lengths.saturate, warmup=0.0, traffic=[{"titles": TITLES}])
    rate = find_max.saturation(probe, running.run, _say)
    turns, runs = [], LoadRuns()
    for turn in range(rounds):
        model = alone.pairs_per_second(lengths.saturate)
        outcome = runs.run(
            plan.changed(
                rate=SATURATING * rate,
                warmup=lengths.fill,
                duration=lengths.saturate,
                seed=turn + 1,
                traffic=[{"titles": TITLES}],
            ),
            f"turn {turn + 1}",
        )
        answered = outcome.recorder.ok / outcome.seconds
        client = (outcome.cpu_share or 0.0) / alone.cores
        share = answered * TITLES / model
        turns.append(
            {
                "model": model,
                "http": answered * TITLES,
                "client": client,
                "raw_share": share,
                "share": share / (1 - client),
            }
        )
    return {
        "requests_per_second": statistics.median(turn["http"] for turn in turns) / TITLES,
        **{name: statistics.median(turn[name] for turn in turns) for name in turns[0]},
        "range": [min(turn["share"] for turn in turns), max(turn["share"] for turn in turns)],
        "turns": turns,
        "invalid": runs.invalid,
    }


def idle(plan: Plan, alone: ModelAlone, rounds: int, lengths: Lengths) -> dict[str, Any]:
    """Measure the median time of one pair on an idle server and by the model alone, in milliseconds."""
    turns, runs = [], LoadRuns()
    for turn in range(rounds):
        model = alone.one_pair_ms()
        outcome = runs.run(
            plan.changed(
                rate=10.0,
                arrivals="constant",
                duration=lengths.idle / rounds + 1,
                seed=turn + 1,
                traffic=[{"titles": 1}],
            ),
            f"turn {turn + 1}",
        )
        turns.append({"model": model, "http": _ms(outcome.recorder.service, 50)})
    overhead = [turn["http"] - turn["model"] for turn in turns]
    return {
        "model_ms": statistics.median(turn["model"] for turn in turns),
        "http_ms": statistics.median(turn["http"] for turn in turns),
        "overhead_ms": statistics.median(overhead),
        "range": [min(overhead), max(overhead)],
        "invalid": runs.invalid,
    }


def overload(plan: Plan, server: Server, peak: float, lengths: Lengths) -> dict[str, Any]:
    """Measure the server at twice its peak rate, with a deadline of 2 s. peak: requests per second."""
    before, runs = server_memory(server.pid), LoadRuns()
    outcome = runs.run(
        plan.changed(
            rate=2 * peak,
            warmup=lengths.fill,
            duration=lengths.overload,
            traffic=[{"titles": TITLES, "deadline_ms": DEADLINE_MS}],
        ),
        "the only turn",
    )
    recorder = outcome.recorder
    latency = recorder.latency()
    return {
        "rate": 2 * peak,
        "goodput": recorder.ok / outcome.seconds / peak,
        "ok": recorder.ok,
        "ok_p50_ms": _ms(latency, 50),
        "ok_p99_ms": _ms(latency, 99),
        "errors": dict(recorder.errors),
        "refused_p50_ms": _ms(recorder.error_latency, 50),
        "refused_p99_ms": _ms(recorder.error_latency, 99),
        "memory_growth": server_memory(server.pid) / before,
        "client": outcome.cpu_share,
        "invalid": runs.invalid,
    }


def crowd(plan: Plan, rounds: int, lengths: Lengths, long: Requests) -> dict[str, Any]:
    """Measure single titles with and without a client that sends long requests in a loop, in turns.

    The times and `requests`, the number of single titles of a turn, are medians of the turns. `long_requests`
    is the smallest number of long requests that were answered in a turn.
    """
    single = plan.changed(rate=CROWD_RATE, duration=lengths.crowd, traffic=[{"titles": 1}])
    turns, runs = [], LoadRuns()
    for turn in range(max(1, rounds // 2)):
        without = runs.run(single.changed(seed=2 * turn + 1), f"turn {turn + 1}, alone")
        with Loop(plan.url, long) as loop:
            beside_it = runs.run(single.changed(seed=2 * turn + 2), f"turn {turn + 1}, beside it")
        turns.append(
            {
                "without_p50_ms": _p(without, 50),
                "without_p99_ms": _p(without, 99),
                "with_p50_ms": _p(beside_it, 50),
                "with_p99_ms": _p(beside_it, 99),
                "requests": beside_it.recorder.scheduled,
                "failed": sum(beside_it.recorder.errors.values()),
                "long_requests": loop.answered,
                "long_failed": loop.failed,
            }
        )
    middle = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    return {
        **middle,
        "failed": sum(turn["failed"] for turn in turns),
        "long_requests": min(turn["long_requests"] for turn in turns),
        "long_failed": sum(turn["long_failed"] for turn in turns),
        "factor": middle["with_p99_ms"] / middle["without_p99_ms"],
        "turns": len(turns),
        "invalid": runs.invalid,
    }


def memory(plan: Plan, server: Server, lengths: Lengths) -> dict[str, Any]:
    """Measure how much a replica's memory grows when a live config adds a variant with another mask."""
    traffic = plan.changed(rate=10.0, duration=lengths.memory)
    running.run(traffic.changed(traffic=[{"titles": TITLES}]))
    before = server_memory(server.pid)
    text = server.config.read_text("utf-8")
    line = '{name: another, head_mask: "random:0.2@11"}'
    first = next(line for line in text.splitlines() if "- {name: full}" in line)
    server.config.write_text(text.replace(first, f"{first}\n{first.replace('{name: full}', line)}"), "utf-8")
    wait_for_variant(server.url, "another")
    running.run(traffic.changed(traffic=[{"titles": TITLES, "variants": {"another": 1}}]))
    return {"bytes": before, "factor": server_memory(server.pid) / before}


def _p(outcome: Outcome, percent: float) -> float:
    return _ms(outcome.recorder.latency(), percent)


def _ms(histogram: Any, percent: float) -> float:
    value = histogram.percentile_ms(percent)
    return math.nan if value is None else float(value)


def _say(line: str) -> None:
    print(f"benchmarks: {line}", file=sys.stderr, flush=True)
