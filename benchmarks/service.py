"""Our server over HTTP: what it adds to the model, overload, mixed crowds, memory, start.

The server is `headroom serve` with the shipped model and configuration on a port of its own; the load comes
from our open-loop load tester. What is compared takes turns in one run.
"""

from __future__ import annotations

import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks import checkpoints, request_path
from benchmarks.crowd import Loop, ModelAlone, Requests, server_memory, wait_for_variant
from benchmarks.measure import machine
from loadtest import beside, find_max, running
from loadtest.plan import Plan
from loadtest.running import Outcome

CONFIG = Path(__file__).parents[1] / "deploy" / "serve.yaml"
ROUNDS = 5
TITLES = 20
MANY_TITLES = 1000
LONG_WORDS = 650
"""Words of a title that overfills the model's window five times; 1,000 such are 3.8 MB of a body's 4."""

DEADLINE_MS = 2000.0
SATURATING = 1.5
"""Times the rate that was found to saturate: enough that there is always work, for throughput."""

CROWD_RATE = 8.0
"""Single titles a second in the mixed crowd."""

TARGETS = {
    "share": 0.9,
    "idle_overhead_ms": 3.0,
    "goodput": 0.9,
    "refused_p99_ms": 50.0,
    "crowd_factor": 3.0,
    "crowd_p99_ms": 150.0,
    "variant": 1.02,
    "start_s": 25.0,
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds of each measurement. fill: before it, until the queue is as full as it will be at the end."""

    fill: float = 3.0
    saturate: float = 6.0
    idle: float = 8.0
    overload: float = 20.0
    crowd: float = 15.0


def measure(
    rounds: int = ROUNDS, lengths: Lengths = Lengths(), config: Path = CONFIG, base: Path | None = None
) -> dict[str, Any]:
    """All of it against one server, and saturation against another; `rounds` turns of what takes turns.

    base: the other's checkpoint, if not random weights of BERT-base's shape.
    """
    with tempfile.TemporaryDirectory() as scratch, served(config, Path(scratch)) as server:
        plan = _plan(server)
        result: dict[str, Any] = {"machine": machine(), "rounds": rounds, "start_s": server.start_s}
        alone = ModelAlone(TITLES)
        try:
            result["saturated"] = saturated(plan, alone, rounds, lengths)
            result["idle"] = idle(plan, alone, rounds, lengths)
            peak = result["saturated"]["requests_per_second"]
            result["overload"] = overload(plan, server, peak, lengths)
            result["crowd"] = crowd(plan, rounds, lengths, Requests(MANY_TITLES))
            result["memory"] = memory(plan, server)
            result["path"] = request_path.measure(TITLES)
        finally:
            alone.close()
    result["long_crowd"] = long_crowd(rounds, lengths, config)
    result["base"] = saturated_with(base or checkpoints.checkpoint("base"), rounds, lengths, config)
    return result


def saturated_with(model: Path, rounds: int, lengths: Lengths, config: Path) -> dict[str, Any]:
    """`saturated` of a server of its own for another model."""
    alone = ModelAlone(TITLES, model)
    try:
        with tempfile.TemporaryDirectory() as scratch, served(config, Path(scratch), model) as server:
            return saturated(_plan(server), alone, rounds, lengths)
    finally:
        alone.close()


def long_crowd(rounds: int, lengths: Lengths, config: Path) -> dict[str, Any]:
    """`crowd` beside titles that overfill the model's window, on one replica: nobody can avoid them."""
    with tempfile.TemporaryDirectory() as scratch, served(config, Path(scratch), replicas=1) as server:
        return crowd(_plan(server), rounds, lengths, Requests(MANY_TITLES, LONG_WORDS))


@dataclass(frozen=True, slots=True)
class Server:
    """A running `headroom serve`: process id of the driver, seconds until it was ready, its config file."""

    url: str
    pid: int
    start_s: float
    config: Path


def _plan(server: Server) -> Plan:
    return Plan(url=server.url, timeout=5.0, connections=4096, warmup=1.0, max_lag=0.05, slo="p99=1s")


@contextmanager
def served(
    config: Path, scratch: Path, model: Path | None = None, replicas: int | None = None
) -> Iterator[Server]:
    """Our server until the block ends, on a free port, with a copy of the config that may be edited.

    model, replicas: others than the config's.
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


def saturated(plan: Plan, alone: ModelAlone, rounds: int, lengths: Lengths) -> dict[str, Any]:
    """Requests of 20 titles as fast as the server takes them, and such pairs by the model alone, in turns.

    share: pairs over HTTP against the model's, had the load generator's processor time been the server's.
    """
    probe = plan.changed(duration=lengths.saturate, warmup=0.0, traffic=[{"titles": TITLES}])
    rate = find_max.saturation(probe, running.run, _say)
    turns = []
    for turn in range(rounds):
        model = alone.pairs_per_second(lengths.saturate)
        outcome = running.run(
            plan.changed(
                rate=SATURATING * rate,
                warmup=lengths.fill,
                duration=lengths.saturate,
                seed=turn + 1,
                traffic=[{"titles": TITLES}],
            )
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
    }


def idle(plan: Plan, alone: ModelAlone, rounds: int, lengths: Lengths) -> dict[str, Any]:
    """One pair at a time on a server that does nothing else, and by the model alone: median milliseconds."""
    turns = []
    for turn in range(rounds):
        model = alone.one_pair_ms()
        outcome = running.run(
            plan.changed(
                rate=10.0,
                arrivals="constant",
                duration=lengths.idle / rounds + 1,
                seed=turn + 1,
                traffic=[{"titles": 1}],
            )
        )
        turns.append({"model": model, "http": _ms(outcome.recorder.service, 50)})
    overhead = [turn["http"] - turn["model"] for turn in turns]
    return {
        "model_ms": statistics.median(turn["model"] for turn in turns),
        "http_ms": statistics.median(turn["http"] for turn in turns),
        "overhead_ms": statistics.median(overhead),
        "range": [min(overhead), max(overhead)],
    }


def overload(plan: Plan, server: Server, peak: float, lengths: Lengths) -> dict[str, Any]:
    """Twice what the server can do, each request with a deadline of 2 s. peak: requests a second."""
    before = server_memory(server.pid)
    outcome = running.run(
        plan.changed(
            rate=2 * peak,
            warmup=lengths.fill,
            duration=lengths.overload,
            traffic=[{"titles": TITLES, "deadline_ms": DEADLINE_MS}],
        )
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
    }


def crowd(plan: Plan, rounds: int, lengths: Lengths, long: Requests) -> dict[str, Any]:
    """Single titles with and without a client that sends the long requests again and again, in turns."""
    single = plan.changed(rate=CROWD_RATE, duration=lengths.crowd, traffic=[{"titles": 1}])
    turns = []
    for turn in range(max(1, rounds // 2)):
        without = running.run(single.changed(seed=2 * turn + 1))
        with Loop(plan.url, long) as loop:
            beside_it = running.run(single.changed(seed=2 * turn + 2))
        turns.append(
            {
                "without_p50_ms": _p(without, 50),
                "without_p99_ms": _p(without, 99),
                "with_p50_ms": _p(beside_it, 50),
                "with_p99_ms": _p(beside_it, 99),
                "failed": sum(beside_it.recorder.errors.values()),
                "long_requests": loop.answered,
                "long_failed": loop.failed,
            }
        )
    middle = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    return {
        **middle,
        "failed": sum(turn["failed"] for turn in turns),
        "factor": middle["with_p99_ms"] / middle["without_p99_ms"],
    }


def memory(plan: Plan, server: Server) -> dict[str, Any]:
    """The replica's memory before and after a live config adds a variant with another mask, under traffic."""
    traffic = plan.changed(rate=10.0, duration=3.0)
    running.run(traffic.changed(traffic=[{"titles": TITLES}]))
    before = server_memory(server.pid)
    text = server.config.read_text("utf-8")
    line = '{name: another, head_mask: "random:0.2@11"}'
    first = next(line for line in text.splitlines() if "- {name: full}" in line)
    server.config.write_text(text.replace(first, f"{first}\n{first.replace('{name: full}', line)}"), "utf-8")
    wait_for_variant(server.url, "another")
    running.run(traffic.changed(traffic=[{"titles": TITLES, "variants": {"another": 1}}]))
    return {"bytes": before, "factor": server_memory(server.pid) / before}


def as_markdown(result: dict[str, Any]) -> str:
    """The table of the section."""
    saturated, idle, overload, crowd = (result[name] for name in ("saturated", "idle", "overload", "crowd"))
    errors = ", ".join(f"{count} {kind}" for kind, count in sorted(overload["errors"].items())) or "none"
    rows = [
        ("HTTP against the model alone, 20 titles a request, saturated", _share(saturated), "≥ 90 %"),
        ("the same with BERT-base's shape", _share(result["base"]), "≥ 90 %"),
        (
            "one pair, idle",
            f"p50 {idle['http_ms']:.1f} ms, the model alone {idle['model_ms']:.1f} ms: "
            f"+ {idle['overhead_ms']:.1f} ms",
            "≤ + 3 ms",
        ),
        (
            f"overload: {overload['rate']:.0f} requests/s, twice the peak, deadline 2 s",
            f"goodput {overload['goodput']:.0%} of the peak, p99 {overload['ok_p99_ms']:.0f} ms; "
            f"not answered: {errors}",
            "≥ 90 %",
        ),
        (
            "overload: time to a refusal",
            f"p50 {overload['refused_p50_ms']:.0f} ms, p99 {overload['refused_p99_ms']:.0f} ms",
            "≤ 50 ms",
        ),
        ("overload: replica's memory after / before", f"{overload['memory_growth']:.3f}", "flat"),
        (
            f"single titles ({CROWD_RATE:g}/s) beside a client with 1,000 titles in a loop",
            _crowd(crowd),
            "≤ × 3, ≤ 150 ms, none fails",
        ),
        (
            f"the same, titles of {LONG_WORDS} words, one replica",
            _crowd(result["long_crowd"]),
            "≤ × 3, ≤ 150 ms, none fails",
        ),
        (
            "memory with a second mask variant",
            f"× {result['memory']['factor']:.3f} of {result['memory']['bytes'] / 2**20:.0f} MiB",
            "≤ × 1.02",
        ),
        ("ready after", f"{result['start_s']:.1f} s", "≤ 25 s"),
    ]
    lines = [
        f"{result['machine']}; {result['rounds']} rounds.",
        "",
        "| what | measured | target |",
        "|---|---|---|",
    ]
    lines += [f"| {what} | {measured} | {target} |" for what, measured, target in rows]
    return "\n".join([*lines, "", request_path.as_markdown(result["path"])])


def _share(found: dict[str, Any]) -> str:
    low, high = found["range"]
    return (
        f"{found['share']:.0%} ({low:.0%} to {high:.0%}): {found['http']:.0f} of {found['model']:.0f} pairs/s"
        f", where the load generator took {found['client']:.1%} of the processors ({found['raw_share']:.0%} "
        "without counting that)"
    )


def _crowd(found: dict[str, Any]) -> str:
    return (
        f"p99 {found['with_p99_ms']:.0f} ms, without it {found['without_p99_ms']:.0f} ms: "
        f"× {found['factor']:.1f}; {found['failed']:.0f} failed"
    )


def missed(result: dict[str, Any]) -> list[str]:
    """The targets that this run does not reach, in words."""
    saturated, idle, overload, crowd = (result[name] for name in ("saturated", "idle", "overload", "crowd"))
    not_429 = {kind: count for kind, count in overload["errors"].items() if kind != "http_429"}
    checks = [
        (saturated["share"] >= TARGETS["share"], f"HTTP gives {saturated['share']:.0%} of the model alone"),
        (
            result["base"]["share"] >= TARGETS["share"],
            f"HTTP gives {result['base']['share']:.0%} of the model alone with BERT-base's shape",
        ),
        (
            idle["overhead_ms"] <= TARGETS["idle_overhead_ms"],
            f"one pair takes {idle['overhead_ms']:.1f} ms more",
        ),
        (overload["goodput"] >= TARGETS["goodput"], f"goodput {overload['goodput']:.0%} under overload"),
        (
            sum(not_429.values()) <= 0.01 * overload["ok"],
            f"under overload some got neither an answer nor 429: {not_429}",
        ),
        (
            not overload["errors"] or overload["refused_p99_ms"] <= TARGETS["refused_p99_ms"],
            f"a refusal takes {overload['refused_p99_ms']:.0f} ms",
        ),
        (overload["memory_growth"] <= TARGETS["variant"], f"memory grew × {overload['memory_growth']:.3f}"),
        *(
            (
                found["factor"] <= TARGETS["crowd_factor"]
                and found["with_p99_ms"] <= TARGETS["crowd_p99_ms"]
                and not found["failed"],
                f"{name}: p99 {found['with_p99_ms']:.0f} ms, × {found['factor']:.1f}, "
                f"{found['failed']:.0f} failed",
            )
            for name, found in (("mixed crowd", crowd), ("mixed crowd, long texts", result["long_crowd"]))
        ),
        (
            result["memory"]["factor"] <= TARGETS["variant"],
            f"a second variant costs × {result['memory']['factor']:.3f}",
        ),
        (result["start_s"] <= TARGETS["start_s"], f"ready after {result['start_s']:.1f} s"),
    ]
    return [f"service: {words}" for reached, words in checks if not reached]


def _p(outcome: Outcome, percent: float) -> float:
    return _ms(outcome.recorder.latency(), percent)


def _ms(histogram: Any, percent: float) -> float:
    value = histogram.percentile_ms(percent)
    return math.nan if value is None else float(value)


def _say(line: str) -> None:
    print(f"benchmarks: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
    sys.stdout.buffer.write(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    print("\n" + as_markdown(found), *missed(found), sep="\n")
