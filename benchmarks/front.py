"""Measures the front: everything that a replica does for a request but the network, which answers at once.

`headroom serve` runs with `benchmarks.front_engine`; a client in this process sends it requests of 20 titles
over 32 connections. The result is pairs per second of processor time of the replicas (user and system, all
threads): other programs on the machine disturb that less than the time on the clock.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.front_client import Traffic, load
from benchmarks.measure import machine
from benchmarks.service_runs import TITLES, Server, served
from models.checkpoint.hub import DEFAULT
from models.cores import cores

ROUNDS = 5
SECONDS = 4.0
CONNECTIONS = 32
TARGET = 25_000
LINEAR = 0.9
"""Least share of one replica's rate that each of several replicas must reach, for "linear over cores"."""

CONFIG = Path(__file__).parents[1] / "deploy" / "serve.yaml"
BATCH_TOKENS = 16_384  # a GPU's
MOST_PER_SECOND = 2000
"""Requests per second that are written in advance if texts are new; more than any machine answers."""


def measure(rounds: int = ROUNDS, seconds: float = SECONDS, model: Path = DEFAULT) -> dict[str, Any]:
    """Run all measurements, on one replica and on one per core, in turns. seconds: of each."""
    turns: dict[int, dict[str, list[dict[str, float]]]] = {
        number: {"known": [], "new": []} for number in sorted({1, cores()})
    }
    with ExitStack() as started:
        servers = {number: started.enter_context(_server(number, model)) for number in turns}
        for turn in range(rounds):
            for number, by_texts in turns.items():  # the other server has nothing to do
                for texts, results in by_texts.items():
                    traffic = Traffic(TITLES, new=texts == "new", seed=turn)
                    results.append(_turn(servers[number], traffic, seconds))
    return {
        "machine": machine(),
        "rounds": rounds,
        "replicas": {str(number): _medians(by_texts) for number, by_texts in turns.items()},
    }


@contextmanager
def _server(replicas: int, model: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "front.yaml"
        config.write_text(_config(), "utf-8")
        with served(config, Path(scratch), model, replicas) as server:
            yield server


def _medians(by_texts: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    return {
        texts: {name: statistics.median(turn[name] for turn in results) for name in results[0]}
        | {"range": [f(turn["pairs_per_cpu_s"] for turn in results) for f in (min, max)]}
        for texts, results in by_texts.items()
    }


def _config() -> str:
    """Return deploy/serve.yaml with the front's engine and a GPU's sizes."""
    document = yaml.safe_load(CONFIG.read_text("utf-8"))
    application = document["applications"][0]
    application["import_path"] = "benchmarks.front_engine:build"
    application["args"] = {"device": "cpu", "max_batch_tokens": BATCH_TOKENS, "max_queue_tokens": 2**20}
    return yaml.safe_dump(document)


def _turn(server: Server, traffic: Traffic, seconds: float) -> dict[str, float]:
    """Measure one load: processor seconds by program, and pairs."""
    readings: list[dict[str, dict[int, float]]] = []
    requests = traffic.requests(int(MOST_PER_SECOND * (seconds + 1)), "localhost")
    reading = asyncio.run(
        load(
            server.url,
            requests,
            connections=CONNECTIONS,
            seconds=seconds,
            at_edge=lambda: readings.append(_cpu(server)),
        )
    )
    if reading.failed or not reading.answered:
        raise RuntimeError(f"{reading.failed} requests failed, {reading.answered} were answered")
    before, after = readings
    pairs = reading.answered * TITLES
    used = {
        name: sum(seconds - before[name].get(pid, 0.0) for pid, seconds in after[name].items())
        for name in after
    }
    return {
        "pairs_per_cpu_s": pairs / used["front"],
        "pairs_per_s": pairs / reading.seconds,
        "front_ms": used["front"] / reading.answered * 1000,
        "haproxy_ms": used["haproxy"] / reading.answered * 1000,
    }


def _cpu(server: Server) -> dict[str, dict[int, float]]:
    """Return the processor seconds of the replicas and of HAProxy, by process id.

    An HAProxy that has handed over to a new one ends when its last connection does.
    """
    seconds: dict[str, dict[int, float]] = {"front": {}, "haproxy": {}}
    for process in psutil.Process(server.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            program = "haproxy" if process.name() == "haproxy" else "front"
            if program == "haproxy" or "ServeReplica" in " ".join(process.cmdline()):
                times = process.cpu_times()
                seconds[program][process.pid] = times.user + times.system
    return seconds


def as_markdown(result: dict[str, Any]) -> str:
    """Return the section's table."""
    lines = [
        f"{result['machine']}; {result['rounds']} rounds; {TITLES} titles a request, "
        f"{CONNECTIONS} connections.",
        "",
        "| replicas | texts | pairs per second and core of front | ms a request: front | HAProxy "
        "| pairs/s by the clock, client beside it |",
        "|---|---|---|---|---|---|",
    ]
    for replicas, by_texts in result["replicas"].items():
        for texts, row in by_texts.items():
            low, high = row["range"]
            lines.append(
                f"| {replicas} | {texts} | {row['pairs_per_cpu_s']:,.0f} ({low:,.0f} to {high:,.0f}) "
                f"| {row['front_ms']:.2f} | {row['haproxy_ms']:.2f} | {row['pairs_per_s']:,.0f} |"
            )
    return "\n".join(lines)


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line for each target that this run misses."""
    lines = []
    rates = {
        (replicas, texts): row["pairs_per_cpu_s"]
        for replicas, by_texts in result["replicas"].items()
        for texts, row in by_texts.items()
    }
    for (replicas, texts), rate in rates.items():
        if rate < TARGET:
            lines.append(f"front: {replicas} replicas, {texts} texts: {rate:,.0f} pairs per second and core")
        if rate < LINEAR * rates["1", texts]:
            lines.append(
                f"front: {replicas} replicas, {texts} texts: {rate / rates['1', texts]:.0%} of one's"
            )
    return lines
