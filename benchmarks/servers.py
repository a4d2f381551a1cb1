"""Compares servers over HTTP with the same model, requests and open-loop client, one server at a time."""

from __future__ import annotations

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks import environments
from benchmarks.environments import Unavailable
from benchmarks.load_runs import LoadRuns
from benchmarks.measure import machine
from benchmarks.servers_table import as_markdown, missed
from benchmarks.started_server import TITLES, Server, ask, sample, started
from benchmarks.workload import BERT_SHAPES, SHAPES
from loadtest.plan import Plan

__all__ = ["ROUNDS", "as_markdown", "measure", "missed"]

ROUNDS = 3
OVER = 1.3
"""Rate that is sent to saturate a server, relative to its highest known rate."""

LOAD = 0.7
"""Rate at which latency is measured, relative to the server's own saturation."""

TRIES = 8
"""Rates that are tried to saturate a server, each twice the one before."""

AT_ONCE = 8
"""Concurrent requests of the first guess."""

MAX_LAG_S = 0.05
"""How late the client may send a request before a run is invalid, as for our server alone."""

SECONDS = {"base": (16.0, 20.0), "shipped": (8.0, 12.0)}
"""Seconds of the saturation run and of the latency run, by shape."""


def _peer(
    name: str, environment: str, script: str, engine: str, kind: str = "peer", workers: int = 1
) -> Server:
    command = f"python -m benchmarks.peers.{script} --engine {engine} --model {{model}} --port {{port}}"
    command += f" --workers {workers}"
    return Server(name, kind, environment, command)


SERVERS = (
    Server("headroom bf16", "bf16", "ours", "headroom serve --model {model} --port {port}"),
    Server("headroom int8", "int8", "ours", "headroom serve --model {int8} --port {port}"),
    _peer("Ray Serve, transformers fp32", "ours", "serve_ray", "torch_transformers:fp32", "stock"),
    _peer("Ray Serve, transformers bf16", "ours", "serve_ray", "torch_transformers:bf16"),
    _peer("LitServe, 2 workers, OpenVINO bf16", "litserve", "serve_litserve", "open_vino:bf16", workers=2),
    _peer("BentoML, OpenVINO bf16", "bentoml", "serve_bentoml", "open_vino:bf16"),
    _peer("BentoML, 2 workers, OpenVINO bf16", "bentoml", "serve_bentoml", "open_vino:bf16", workers=2),
    _peer("mosec, OpenVINO bf16", "mosec", "serve_mosec", "open_vino:bf16"),
    _peer("mosec, 2 workers, OpenVINO bf16", "mosec", "serve_mosec", "open_vino:bf16", workers=2),
    _peer("mosec, 2 workers, CTranslate2 int8", "mosec", "serve_mosec", "c_translate2:int8", workers=2),
    Server(
        "Infinity, torch bf16",
        "peer",
        "infinity",
        "infinity_emb v2 --model-id {one_label} --engine torch --dtype bfloat16 --device cpu"
        " --no-bettertransformer --batch-size 64 --no-model-warmup --host 127.0.0.1 --port {port}"
        " --url-prefix /v1 --log-level warning",
        endpoint="rerank",
        variables={"DO_NOT_TRACK": "1"},
    ),
)
"""Infinity's rerank needs one label, so it gets the same encoder with one output instead of five."""


def measure(rounds: int) -> dict[str, Any]:
    """Measure every server on both shapes; each round goes over all servers."""
    missing: dict[str, str] = {}
    turns: list[dict[str, Any]] = []
    for shape in BERT_SHAPES:
        capacity: dict[str, float] = {}
        for number in range(rounds):
            for server in SERVERS:
                if server.name in missing:
                    continue
                print(f"servers: {shape}, round {number + 1}: {server.name}", file=sys.stderr, flush=True)
                try:
                    turn = one_turn(server, shape, capacity.get(server.name), latency=number == 0)
                except Unavailable as reason:
                    missing[server.name] = str(reason)
                    continue
                capacity[server.name] = turn["pairs_per_second"] / TITLES
                turns.append({"round": number, "shape": shape, "server": server.name, **turn})
    return result_of(turns, missing)


def result_of(turns: list[dict[str, Any]], missing: dict[str, str]) -> dict[str, Any]:
    """Return the result of turns such as {"round", "shape", "server", "pairs_per_second", "scores", …}."""
    rows = []
    for shape in dict.fromkeys(turn["shape"] for turn in turns):
        of_shape = [turn for turn in turns if turn["shape"] == shape]
        speed: dict[str, dict[int, float]] = {}
        for turn in of_shape:
            speed.setdefault(turn["server"], {})[turn["round"]] = turn["pairs_per_second"]
        for server in SERVERS:
            if server.name not in speed:
                continue
            first = next(turn for turn in of_shape if turn["server"] == server.name)
            ours = next((turn for turn in of_shape if turn["server"] == SERVERS[0].name), first)
            comparable = server.endpoint == "score"
            rows.append(
                {
                    "shape": SHAPES[shape].name,
                    "server": server.name,
                    "kind": server.kind,
                    "pairs_per_second": statistics.median(speed[server.name].values()),
                    "bf16_over_it": _over(speed, "headroom bf16", server.name),
                    "int8_over_it": _over(speed, "headroom int8", server.name),
                    "score_error": float(np.abs(np.subtract(first["scores"], ours["scores"])).max())
                    if comparable
                    else None,
                    **{
                        name: first.get(name) for name in ("p50_ms", "p99_ms", "requests", "failed", "client")
                    },
                }
            )
    rounds = 1 + max((turn["round"] for turn in turns), default=-1)
    invalid = [
        f"{SHAPES[turn['shape']].name}, round {turn['round'] + 1}, {turn['server']}, {line}"
        for turn in turns
        for line in turn.get("invalid", [])
    ]
    return {
        "machine": machine(),
        "rounds": rounds,
        "rows": rows,
        "missing": missing,
        "invalid": invalid,
        "pins": PINS,
    }


PINS = {name: list(pins) for name, pins in environments.PINS.items() if name not in ("ours", "engines")}


def one_turn(server: Server, shape: str, capacity: float | None, *, latency: bool) -> dict[str, Any]:
    """Start the server, warm it up, saturate it, measure its latency under load, and stop it.

    capacity: requests per second, if known. Raises Unavailable.
    """
    saturating, loaded = SECONDS[shape]
    with started(server, shape) as url:
        scores = ask(url, server.endpoint, sample(1)[0])
        guess = first_guess(url, server.endpoint)
        sent = max(0.5, OVER * (capacity or guess))
        plan = Plan(
            url=url,
            timeout=60.0,
            connections=2048,
            warmup=0.0,
            duration=saturating,
            max_lag=MAX_LAG_S,
            traffic=[{"titles": TITLES, "endpoint": server.endpoint}],
        )
        for number in range(TRIES):
            runs = LoadRuns()  # only the last one counts
            rate, kept_up = saturated(plan.changed(rate=sent * 2**number), runs)
            if not kept_up:
                break
        else:
            runs.invalid.append(f"not saturated: it kept up with each of {TRIES} rates")
        turn: dict[str, Any] = {"pairs_per_second": rate * TITLES, "scores": scores, "invalid": runs.invalid}
        if latency:
            outcome = runs.run(
                plan.changed(rate=LOAD * rate, duration=loaded, warmup=2.0, seed=2, timeout=20.0),
                f"at {LOAD:.0%}",
            )
            recorder = outcome.recorder
            turn |= {
                "p50_ms": recorder.latency().percentile_ms(50),
                "p99_ms": recorder.latency().percentile_ms(99),
                "requests": recorder.ok,
                "failed": sum(recorder.errors.values()),
                "client": outcome.cpu_share,
            }
    return turn


def saturated(plan: Plan, runs: LoadRuns) -> tuple[float, bool]:
    """Send more than the server can do; return answers per second, and whether the server kept up."""
    outcome = runs.run(plan, "saturated")
    recorder = outcome.recorder
    if not recorder.ok:
        raise Unavailable(f"no request was answered: {dict(recorder.errors)}")
    slowest = (recorder.latency().percentile_ms(100) or 0.0) / 1000
    # The last answer came at the latest at the end of its window, or after the slowest answer's time.
    last = max(place for place, window in enumerate(recorder.windows) if window.answered)
    ended = min((last + 1) * recorder.window, outcome.seconds + slowest)
    return recorder.ok / ended, not recorder.errors and slowest < 0.1 * outcome.seconds


def first_guess(url: str, endpoint: str) -> float:
    """Warm a new server up, and return its requests per second with AT_ONCE concurrent requests."""
    requests = sample(3 * AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda request: ask(url, endpoint, request), requests[:AT_ONCE]))
        began = time.monotonic()
        list(pool.map(lambda request: ask(url, endpoint, request), requests[AT_ONCE:]))
    return 2 * AT_ONCE / (time.monotonic() - began)


def _over(speed: dict[str, dict[int, float]], ours: str, other: str) -> list[float] | None:
    """Return how many times faster ours is: median, minimum and maximum of the rounds; None without ours."""
    if ours == other or ours not in speed:
        return None
    ratios = [speed[ours][number] / value for number, value in speed[other].items() if number in speed[ours]]
    return [statistics.median(ratios), min(ratios), max(ratios)] if ratios else None
