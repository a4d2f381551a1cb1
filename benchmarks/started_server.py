"""Starts a server of the comparison and asks it one request at a time."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import checkpoints, environments
from benchmarks.environments import Unavailable
from loadtest import beside
from loadtest.pairs import made_up_pairs

TITLES = 20
"""Titles of a request."""

TRIES = 10
"""How often a request is tried that gets 429; a server just started does not know yet how fast it is."""

READY_S = 150.0
STOP_S = 40.0


@dataclass(frozen=True, slots=True)
class Server:
    """One server with one engine.

    kind: `bf16` and `int8` are ours, `stock` is what a user of Ray Serve writes first, `peer` is any other.
    command: a program of the environment and its arguments, with {model}, {one_label}, {int8} and {port} as
    placeholders.
    """

    name: str
    kind: str
    environment: str
    command: str
    endpoint: str = "score"
    variables: dict[str, str] = field(default_factory=dict)


def sample(count: int) -> list[tuple[str, list[str]]]:
    """Return the query and titles of requests that the load tester makes up."""
    pairs = made_up_pairs(0, count, TITLES)
    return [
        (pairs[start][0], [title for _, title in pairs[start : start + TITLES]])
        for start in range(0, len(pairs), TITLES)
    ]


def ask(url: str, endpoint: str, request: tuple[str, list[str]]) -> list[float]:
    """Return expected grades (Infinity: scores) in the order of the titles. Raises OSError, ValueError."""
    query, titles = request
    field_name = "titles" if endpoint == "score" else "documents"
    body = json.dumps({"query": query, field_name: titles}).encode()
    post = urllib.request.Request(f"{url}/v1/{endpoint}", body, {"content-type": "application/json"})
    for _ in range(TRIES):
        try:
            with urllib.request.urlopen(post, timeout=60) as answer:
                results = json.loads(answer.read())["results"]
            break
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(float(error.headers.get("retry-after", 1)))
    else:
        raise OSError(f"still 429 after {TRIES} tries")
    by_index = sorted(results, key=lambda result: result["index"])
    key = next(key for key in ("expected_grade", "relevance_score", "score") if key in by_index[0])
    return [float(result[key]) for result in by_index]


@contextmanager
def started(server: Server, shape: str) -> Iterator[str]:
    """Start the server, yield its URL after its first right answer, and stop it. Raises Unavailable."""
    model = checkpoints.exported(shape)
    int8 = checkpoints.quantized(shape) if server.kind == "int8" else None
    port = beside.free_port()
    one_label = checkpoints.one_label(shape) if "{one_label}" in server.command else None
    program, *words = server.command.format(model=model, one_label=one_label, int8=int8, port=port).split()
    peer = server.kind in ("peer", "stock")  # ours chooses its threads itself
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
            os.killpg(process.pid, signal.SIGKILL)  # the rest of its session
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
