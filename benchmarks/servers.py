"""Servers side by side over HTTP: the same model, requests and open-loop client; one running at a time."""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import checkpoints, environments
from benchmarks.environments import Unavailable
from benchmarks.measure import machine
from benchmarks.workload import SHAPES
from loadtest import beside, running
from loadtest.pairs import made_up_pairs
from loadtest.plan import Plan

ROUNDS = 3
TITLES = 20
OVER = 1.3
"""Times what the server can do, as far as known, is sent to saturate it."""

LOAD = 0.7
"""Share of its own saturation at which latency is taken."""

AT_ONCE = 8
PATIENCE = 10
"""Tries of a request that is answered 429: a server just started does not know yet how fast it is."""

READY_S = 150.0
STOP_S = 40.0
SECONDS = {"base": (16.0, 20.0), "shipped": (8.0, 12.0)}
"""By shape: of saturation and of the latency run."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server with one engine.

    kind: `bf16` and `int8` are ours, `stock` what a user of Ray Serve writes first, `peer` the rest.
    command: a program of the environment with its arguments; {model}, {one_label}, {int8} and {port} are
    put in.
    """

    name: str
    kind: str
    environment: str
    command: str
    endpoint: str = "score"
    variables: dict[str, str] = field(default_factory=dict)


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
"""Infinity's rerank wants one label: it gets the same encoder with one output in place of five."""


def measure(rounds: int) -> dict[str, Any]:
    """Every server on both shapes; the rounds go over all servers in turn."""
    missing: dict[str, str] = {}
    turns: list[dict[str, Any]] = []
    for shape in SHAPES:
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
    """The section's result from turns {"round", "shape", "server", "pairs_per_second", "scores", …}."""
    rows = []
    for shape in dict.fromkeys(turn["shape"] for turn in turns):
        own = [turn for turn in turns if turn["shape"] == shape]
        speed: dict[str, dict[int, float]] = {}
        for turn in own:
            speed.setdefault(turn["server"], {})[turn["round"]] = turn["pairs_per_second"]
        for server in SERVERS:
            if server.name not in speed:
                continue
            first = next(turn for turn in own if turn["server"] == server.name)
            ours = next((turn for turn in own if turn["server"] == SERVERS[0].name), first)
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
                    **{name: first.get(name) for name in ("p50_ms", "p99_ms", "requests", "client")},
                }
            )
    rounds = 1 + max((turn["round"] for turn in turns), default=-1)
    return {"machine": machine(), "rounds": rounds, "rows": rows, "missing": missing, "pins": PINS}


PINS = {name: list(pins) for name, pins in environments.PINS.items() if name not in ("ours", "engines")}


def one_turn(server: Server, shape: str, capacity: float | None, *, latency: bool) -> dict[str, Any]:
    """Starts the server, saturates it, takes its latency under load, stops it.

    capacity: requests a second, where known. Raises Unavailable.
    """
    saturating, loaded = SECONDS[shape]
    with started(server, shape) as url:
        scores = ask(url, server.endpoint, sample(1)[0])
        capacity = capacity or first_guess(url, server.endpoint)
        plan = Plan(
            url=url,
            timeout=60.0,
            connections=2048,
            warmup=0.0,
            duration=saturating,
            traffic=[{"titles": TITLES, "endpoint": server.endpoint}],
        )
        for _ in range(3):
            rate, kept_up = saturated(plan.changed(rate=max(0.5, OVER * capacity)))
            capacity = max(capacity, rate) if kept_up else rate
            if not kept_up:
                break
        turn: dict[str, Any] = {"pairs_per_second": rate * TITLES, "scores": scores}
        if latency:
            outcome = running.run(
                plan.changed(rate=LOAD * rate, duration=loaded, warmup=2.0, seed=2, timeout=20.0)
            )
            recorder = outcome.recorder
            turn |= {
                "p50_ms": recorder.latency().percentile_ms(50),
                "p99_ms": recorder.latency().percentile_ms(99),
                "requests": recorder.ok,
                "errors": dict(recorder.errors),
                "client": outcome.cpu_share,
            }
    return turn


def saturated(plan: Plan) -> tuple[float, bool]:
    """Answers a second until the last came, with more asked for; and whether the server kept up instead."""
    outcome = running.run(plan)
    recorder = outcome.recorder
    if not recorder.ok:
        raise Unavailable(f"no request was answered: {dict(recorder.errors)}")
    slowest = (recorder.latency().percentile_ms(100) or 0.0) / 1000
    # When the last answer came: within the window it was counted in, and within the slowest answer's time.
    last = max(place for place, window in enumerate(recorder.windows) if window.answered)
    ended = min((last + 1) * recorder.window, outcome.seconds + slowest)
    return recorder.ok / ended, not recorder.errors and slowest < 0.1 * outcome.seconds


def first_guess(url: str, endpoint: str) -> float:
    """Requests a second with AT_ONCE under way, of a server just started; warms it up on the way."""
    requests = sample(3 * AT_ONCE)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda request: ask(url, endpoint, request), requests[:AT_ONCE]))
        began = time.monotonic()
        list(pool.map(lambda request: ask(url, endpoint, request), requests[AT_ONCE:]))
    return 2 * AT_ONCE / (time.monotonic() - began)


def sample(count: int) -> list[tuple[str, list[str]]]:
    """Query and titles of requests as the load tester makes them up."""
    pairs = made_up_pairs(0, count, TITLES)
    return [
        (pairs[start][0], [title for _, title in pairs[start : start + TITLES]])
        for start in range(0, len(pairs), TITLES)
    ]


def ask(url: str, endpoint: str, request: tuple[str, list[str]]) -> list[float]:
    """Expected grades (scores, of Infinity) in the order of the titles. Raises OSError, ValueError."""
    query, titles = request
    field_name = "titles" if endpoint == "score" else "documents"
    body = json.dumps({"query": query, field_name: titles}).encode()
    post = urllib.request.Request(f"{url}/v1/{endpoint}", body, {"content-type": "application/json"})
    for _ in range(PATIENCE):
        try:
            with urllib.request.urlopen(post, timeout=60) as answer:
                results = json.loads(answer.read())["results"]
            break
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(float(error.headers.get("retry-after", 1)))
    else:
        raise OSError(f"still 429 after {PATIENCE} tries")
    by_index = sorted(results, key=lambda result: result["index"])
    key = next(key for key in ("expected_grade", "relevance_score", "score") if key in by_index[0])
    return [float(result[key]) for result in by_index]


@contextmanager
def started(server: Server, shape: str) -> Iterator[str]:
    """Its URL, from its first right answer until the block ends. Raises Unavailable."""
    model = checkpoints.exported(shape)
    int8 = checkpoints.quantized(shape) if server.kind == "int8" else None
    port = beside.free_port()
    one_label = checkpoints.one_label(shape) if "{one_label}" in server.command else None
    program, *words = server.command.format(model=model, one_label=one_label, int8=int8, port=port).split()
    peer = server.kind in ("peer", "stock")  # ours sees to its threads itself
    log = environments.RUNS / "bench-logs" / f"{server.name.replace(' ', '-').replace(',', '')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(environments.python(server.environment).with_name(program)), *words],
            cwd=environments.ROOT,
            env=(environments.environ() if peer else dict(os.environ)) | server.variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, server.endpoint, log)
        yield url
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever of its session is left
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            ask(url, endpoint, sample(1)[0])
            return
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            if process.poll() is not None:
                break
            time.sleep(0.3)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise Unavailable(f"did not become ready: {lines[-1] if lines else 'it said nothing'}")


def _over(speed: dict[str, dict[int, float]], ours: str, other: str) -> list[float] | None:
    """How many times faster ours is: median, lowest and highest of the rounds' ratios; None without ours."""
    if ours == other or ours not in speed:
        return None
    ratios = [speed[ours][number] / value for number, value in speed[other].items() if number in speed[ours]]
    return [statistics.median(ratios), min(ratios), max(ratios)] if ratios else None


def as_markdown(result: dict[str, Any]) -> str:
    """A table for each shape."""
    pins = ", ".join(pins[0] for pins in result["pins"].values())
    lines = [f"{result['machine']}; {result['rounds']} rounds; {TITLES} titles a request. {pins}."]
    for shape in dict.fromkeys(row["shape"] for row in result["rows"]):
        lines += [
            "",
            f"**{shape}**",
            "",
            "| server, engine | pairs/s | our bf16 is × | our int8 is × | p50, p99 at 70 % | scores |",
            "|---|---|---|---|---|---|",
        ]
        rows = [row for row in result["rows"] if row["shape"] == shape]
        for row in sorted(rows, key=lambda row: -row["pairs_per_second"]):
            lines.append(
                f"| {row['server']} | {row['pairs_per_second']:.0f} | {_times(row['bf16_over_it'])} "
                f"| {_times(row['int8_over_it'])} | {_latency(row)} | {_error(row['score_error'])} |"
            )
    lines += [""] * bool(result["missing"])
    lines += [f"Not measured: {name}: {reason}." for name, reason in result["missing"].items()]
    return "\n".join(lines)


def _times(found: list[float] | None) -> str:
    return "" if found is None else "{:.2f} ({:.2f} to {:.2f})".format(*found)


def _latency(row: dict[str, Any]) -> str:
    if row["p50_ms"] is None:
        return ""
    return f"{row['p50_ms']:.0f}, {row['p99_ms']:.0f} ms (of {row['requests']})"


def _error(error: float | None) -> str:
    return "" if error is None else f"± {error:.2g}"


def missed(result: dict[str, Any]) -> list[str]:
    """The targets that were not reached, or could not be measured, in words."""
    lines = []
    for shape in dict.fromkeys(row["shape"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["shape"] == shape]
        best = max((row for row in rows if row["kind"] == "peer"), key=_speed, default=None)
        stock = next((row for row in rows if row["kind"] == "stock"), None)
        for other, name, key, target in (
            (best, "headroom bf16", "bf16_over_it", 1.25),
            (best, "headroom int8", "int8_over_it", 2.0),
            (stock, "headroom bf16", "bf16_over_it", 4.0),
        ):
            if other is None or other[key] is None:
                lines.append(f"{shape}: {name} against its peers was not measured")
            elif other[key][0] < target:
                lines.append(f"{shape}: {name} is {other[key][0]:.2f} × {other['server']}, target {target:g}")
    return lines


def _speed(row: dict[str, Any]) -> float:
    return float(row["pairs_per_second"])
