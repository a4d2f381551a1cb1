"""The server of a load test: starts it if the run should, and reads what it says of itself at /metrics."""

import http.client
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headroom.loadtest.plan import API_KEY_VARIABLE, LoadTestError

READY_S = 180.0
STOP_S = 60.0
TIMEOUT_S = 5.0
"""Time limit of a request to the server that is no part of the load."""

PREFIX = "headroom_"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks the server itself, as the load does, whatever HTTP_PROXY says."""

Sample = tuple[str, tuple[tuple[str, str], ...]]
Samples = dict[Sample, float]


@contextmanager
def started_server(command: str, url: str, interrupted: threading.Event) -> Iterator[int]:
    """Run `command` until the block ends; yield its pid when `url` is ready.

    Raises LoadTestError: it ended or was not ready in time, or `interrupted` was set before it was ready.
    """
    process = subprocess.Popen(shlex.split(command), stdout=sys.stderr, start_new_session=True)
    try:
        deadline = time.monotonic() + READY_S
        while fetch(url, "/health/ready") is None:
            if interrupted.wait(0.2):
                raise LoadTestError("interrupted before the server was ready")
            if process.poll() is not None:
                raise LoadTestError(f"the server ended with status {process.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise LoadTestError(f"the server was not ready after {READY_S:g} s")
        yield process.pid
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server, which leads its session; kill it if that takes over STOP_S or is interrupted."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """Return a free port of 127.0.0.1, which no other call gets before this process has ended.

    It is below the ports that Linux assigns by itself (from 32768), because a server may open many sockets
    before it listens on this port. It is also none of those that `headroom serve` (20000 to 27999) or another
    Ray Serve (from 30000) gives its replicas.
    """
    for port in random.SystemRandom().sample(range(28_000, 30_000), 100):
        mark = socket.socket(type=socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", port))  # UDP, which leaves the port free for the server
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
        else:
            mark.detach()  # it stays open until this process ends
            return port
    raise OSError("no free port found between 28000 and 29999")


def fetch(url: str, path: str) -> bytes | None:
    """Return the body of a GET with the API key, or None if the server does not answer with 200."""
    request = urllib.request.Request(url.rstrip("/") + path)
    if key := os.environ.get(API_KEY_VARIABLE, "").strip():
        request.add_header("authorization", f"Bearer {key}")
    try:
        with DIRECT.open(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read(16 * 2**20)
            return body
    except (OSError, http.client.HTTPException):
        return None


def metrics(url: str) -> Samples | None:
    """Return the counters of the Prometheus text at /metrics; None if there is none."""
    body = fetch(url, "/metrics")
    if body is None:
        return None
    samples: Samples = {}
    try:
        for family in text_string_to_metric_families(body.decode("utf-8", "replace")):
            for sample in family.samples:
                if sample.name.startswith(PREFIX) and sample.name.endswith(("_total", "_sum", "_count")):
                    samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    except ValueError:
        return None
    return samples or None


def difference(before: Samples | None, after: Samples | None) -> dict[str, Any] | None:
    """Return how much the counters grew during a run, warm-up included; None if one end is missing."""
    if before is None or after is None:
        return None
    grown = {sample: after[sample] - before.get(sample, 0.0) for sample in after}
    counters = {
        in_text_format(name, dict(labels)): round(value, 6)
        for (name, labels), value in sorted(grown.items())
        if value and name.endswith("_total")
    }
    return {"counters": counters, "restarted": any(value < 0 for value in grown.values())}


def in_text_format(name: str, labels: Mapping[str, str]) -> str:
    """Return a sample's name with its labels, as Prometheus writes it."""
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name
