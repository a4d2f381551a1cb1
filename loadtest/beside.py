"""What runs beside a load test: its server, events such as faults, and what the server says of itself."""

import contextlib
import http.client
import json
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headroom.loadtest.alarm import clock
from headroom.loadtest.plan import API_KEY_VARIABLE, Event, LoadTestError, Plan, PlanError

READY_S = 180.0
STOP_S = 60.0
EVENT_S = 120.0
TIMEOUT_S = 5.0
"""Time limit of a request to the server that is no part of the load."""

PREFIX = "headroom_"
Sample = tuple[str, tuple[tuple[str, str], ...]]
Samples = dict[Sample, float]


@contextmanager
def started_server(command: str, url: str) -> Iterator[int]:
    """Run `command` until the block ends; yield its pid when `url` is ready. Raises LoadTestError."""
    process = subprocess.Popen(shlex.split(command), stdout=sys.stderr, start_new_session=True)
    try:
        deadline = time.monotonic() + READY_S
        while fetch(url, "/health/ready") is None:
            if process.poll() is not None:
                raise LoadTestError(f"the server ended with status {process.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise LoadTestError(f"the server was not ready after {READY_S:g} s")
            time.sleep(0.2)
        yield process.pid
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
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


class Events:
    """Runs the events of a plan at their times, and records which ran.

    Args:
        server: process id for $SERVER_PID; if None, events that use it are refused.
        directory: $OUT.
    """

    def __init__(self, plan: Plan, server: int | None, directory: Path) -> None:
        for event in plan.events:
            if server is None and "SERVER_PID" in event.run:
                raise PlanError(
                    f"event {event.name!r} acts on the server's processes: let the run --start it"
                )
        self._events = plan.events
        given = {
            "SERVER_PID": str(server or ""),
            "URL": plan.url,
            "OUT": str(directory),
            "PYTHON": sys.executable,
        }
        self._environment = {**os.environ, **given}
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.ran: list[dict[str, Any]] = []

    def begin(self, origin: float) -> None:
        """Start the events; their times count from `origin` on `clock`."""
        self._threads = [
            threading.Thread(target=self._follow, args=(event, origin), daemon=True) for event in self._events
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop: wait for the running event and start no further one."""
        self._over.set()
        for thread in self._threads:
            thread.join(EVENT_S)

    def _follow(self, event: Event, origin: float) -> None:
        at = event.at
        while not self._over.wait(max(0.0, origin + at - clock())):
            self.ran.append({"at": clock() - origin, "name": event.name, **self._run(event)})
            if event.every is None:
                return
            at += event.every

    def _run(self, event: Event) -> dict[str, Any]:
        """Return the command's status, None if it did not end, and as `said` the JSON object it printed."""
        options: dict[str, Any] = {"env": self._environment, "timeout": EVENT_S, "stdout": subprocess.PIPE}
        try:
            ended = subprocess.run(event.run, shell=True, check=False, **options)
        except subprocess.TimeoutExpired:
            return {"status": None}
        with contextlib.suppress(ValueError):
            if isinstance(said := json.loads(ended.stdout), dict):
                return {"status": ended.returncode, "said": said}
        sys.stderr.write(ended.stdout.decode(errors="replace"))
        return {"status": ended.returncode}


def fetch(url: str, path: str) -> bytes | None:
    """Return the body of a GET with the API key, or None if the server does not answer with 200."""
    request = urllib.request.Request(url.rstrip("/") + path)
    if key := os.environ.get(API_KEY_VARIABLE):
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
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
        written(name, dict(labels)): round(value, 6)
        for (name, labels), value in sorted(grown.items())
        if value and name.endswith("_total")
    }
    return {"counters": counters, "restarted": any(value < 0 for value in grown.values())}


def written(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name
