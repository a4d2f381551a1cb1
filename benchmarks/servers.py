"""Compares servers over HTTP with the same model, requests and open-loop client, one server at a time."""

import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np

from benchmarks import checkpoints, environments
from benchmarks.environments import Unavailable
from benchmarks.load import MAX_LAG_S, LoadRuns, texts
from benchmarks.measure import Ratio
from benchmarks.report import Report, Row, not_measured, times_as_fast
from benchmarks.serving import TITLES, ask, started
from benchmarks.workload import BERT_SHAPES, SHAPES
from headroom.loadtest.plan import Plan

ROUNDS = 3
OVER = 1.3
"""Rate that is sent to saturate a server, relative to its highest known rate."""

TRIES = 8
"""Rates that are tried to saturate a server, each twice the one before."""

AT_ONCE = 8
"""Concurrent requests of the first guess."""

SECONDS = {"base": 16.0, "shipped": 8.0}
"""Seconds of the saturation run, by shape."""

BF16 = "headroom bf16"
INT8 = "headroom int8"
STOCK = "Ray Serve, transformers fp32"
OURS = "headroom serve --port {port} --model "


def _peer(server: str, engine: str, workers: int = 1) -> str:
    command = (
        f"python -m benchmarks.peers.servers {server} --engine {engine} --model {{model}} --port {{port}}"
    )
    return f"{command} --workers {workers}"


SERVERS = {
    BF16: ("ours", OURS + "{model}"),
    INT8: ("ours", OURS + "{int8}"),
    STOCK: ("ours", _peer("ray", "transformers:fp32")),
    "Ray Serve, transformers bf16": ("ours", _peer("ray", "transformers:bf16")),
    "mosec, OpenVINO bf16": ("mosec", _peer("mosec", "openvino:bf16")),
    "mosec, 2 workers, OpenVINO bf16": ("mosec", _peer("mosec", "openvino:bf16", 2)),
    "mosec, CTranslate2 int8": ("mosec", _peer("mosec", "ctranslate2:int8")),
    "mosec, 2 workers, CTranslate2 int8": ("mosec", _peer("mosec", "ctranslate2:int8", 2)),
}
"""Environment and command of each server and engine. STOCK is what a user of Ray Serve writes first."""

Speed = dict[str, dict[int, float]]
"""Pairs per second by server and turn."""


def measure(rounds: int) -> Report:
    """Measure every server on both shapes; each round goes over all servers."""
    report = Report(f"{rounds} rounds; {TITLES} titles a request. {environments.PINS['mosec'][0]}.")
    missing: dict[str, str] = {}
    for shape in BERT_SHAPES:
        speed = Speed()
        runs = LoadRuns()
        scores: dict[str, list[float]] = {}
        for number in range(rounds):
            for name in [name for name in SERVERS if name not in missing]:
                print(f"servers: {shape}, round {number + 1}: {name}", file=sys.stderr, flush=True)
                known = max(speed.get(name, {}).values(), default=0.0) / TITLES
                try:
                    with running(name, shape) as url:
                        scores[name] = ask(url, texts(TITLES, 1)[0])
                        rate = TITLES * capacity(
                            url, SECONDS[shape], known, f"{name}, turn {number + 1}", runs
                        )
                except Unavailable as reason:
                    missing[name] = str(reason)
                else:
                    speed.setdefault(name, {})[number] = rate
        report_on(report, shape, speed, scores)
        report.add_invalid(f"{SHAPES[shape].name}, {line}" for line in runs.invalid)
    report.notes += [f"Not measured: {name}: {reason}." for name, reason in missing.items()]
    return report


def capacity(url: str, seconds: float, known: float, name: str, runs: LoadRuns) -> float:
    """Warm the server up and saturate it; return answers per second. Raises Unavailable.

    known: the highest known rate, 0 if there is none.
    """
    guess = first_guess(url)
    plan = Plan(url=url, timeout=60.0, connections=2048, warmup=0.0, duration=seconds, max_lag=MAX_LAG_S)
    plan = plan.changed(traffic=[{"titles": TITLES}])
    for attempt in range(TRIES):
        last = LoadRuns()  # only the last one counts
        rate, kept_up = saturated(plan.changed(rate=max(0.5, OVER * (known or guess)) * 2**attempt), last)
        if not kept_up:
            break
    else:
        last.invalid.append(f"not saturated: it kept up with each of {TRIES} rates")
    runs.invalid += [f"{name}: {reason}" for reason in last.invalid]
    return rate


@contextmanager
def running(name: str, shape: str) -> Iterator[str]:
    """Run a server until the block ends; yield its URL. Raises Unavailable."""
    environment, command = SERVERS[name]
    int8 = checkpoints.quantized(shape) if name == INT8 else None
    program, *words = command.format(model=checkpoints.exported(shape), int8=int8, port="{port}").split()
    program = str(environments.python(environment).with_name(program))
    env = (
        dict(os.environ) if name in (BF16, INT8) else environments.environ()
    )  # ours chooses its threads itself
    with started([program, *words], env, name) as running:
        yield running.url


def saturated(plan: Plan, runs: LoadRuns) -> tuple[float, bool]:
    """Send more than the server can do; return answers per second, and whether the server kept up."""
    outcome = runs.run(plan, "saturated")
    recorder = outcome.recorder
    if not recorder.ok:
        raise Unavailable(f"no request was answered: {dict(recorder.errors)}")
    slowest = (recorder.latency().percentile_ms(100) or 0.0) / 1000
    # The last answer came at the latest at the end of its window, or after the slowest answer's time.
    last = max(number for number, window in enumerate(recorder.windows) if window.answered)
    ended = min((last + 1) * recorder.window, outcome.seconds + slowest)
    return recorder.ok / ended, not recorder.errors and slowest < 0.1 * outcome.seconds


def first_guess(url: str) -> float:
    """Warm a new server up, and return its requests per second with AT_ONCE concurrent requests."""
    requests = texts(TITLES, 3 * AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(partial(ask, url), requests[:AT_ONCE]))
        began = time.monotonic()
        list(pool.map(partial(ask, url), requests[AT_ONCE:]))
    return 2 * AT_ONCE / (time.monotonic() - began)


def report_on(report: Report, shape: str, speed: Speed, scores: dict[str, list[float]]) -> None:
    """Add the rows and the table of one shape. scores: of the same request, by server."""
    medians = {name: statistics.median(rates.values()) for name, rates in speed.items()}
    over = {(ours, name): faster(speed, ours, name) for ours in (BF16, INT8) for name in speed}
    report.tables[SHAPES[shape].name] = [
        {
            "server, engine": name,
            "pairs/s": f"{medians[name]:.0f}",
            **{f"{ours} is ×": ratio.text() if (ratio := over[ours, name]) else "" for ours in (BF16, INT8)},
            "scores": f"± {np.abs(np.subtract(scores[name], scores[BF16])).max():.2g}"
            if BF16 in scores
            else "",
        }
        for name in sorted(medians, key=lambda name: -medians[name])
    ]
    others = [name for name in SERVERS if name not in (BF16, INT8)]
    for ours, peers, minimum in ((BF16, others, 1.25), (INT8, others, 2.0), (BF16, [STOCK], 4.0)):
        report.rows.append(target(SHAPES[shape].name, speed, ours, peers, minimum))


def target(where: str, speed: Speed, ours: str, peers: Sequence[str], minimum: float) -> Row:
    """Return the row that compares ours with the best of peers; it says so if one was not measured."""
    missing = [name for name in (ours, *peers) if name not in speed]
    if missing:
        best = peers[0] if len(peers) == 1 else "the best other server"
        return not_measured(f"{where}: {ours} × {best}", missing, minimum)
    best = max(peers, key=lambda peer: statistics.median(speed[peer].values()))
    times = faster(speed, ours, best)
    assert times is not None, "all were measured in the first turn"
    return times_as_fast(f"{where}: {ours} × {best}", times, minimum)


def faster(speed: Speed, ours: str, other: str) -> Ratio | None:
    """Return how many times as fast ours is, turn by turn; None if one of them was not measured."""
    mine = speed.get(ours, {})
    theirs = speed.get(other, {})
    both = sorted(mine.keys() & theirs.keys())
    return Ratio.of([mine[turn] for turn in both], [theirs[turn] for turn in both]) if both else None
