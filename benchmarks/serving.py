"""Starts a server, ours or a peer's, and asks it one request at a time."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import environments
from benchmarks.environments import ROOT, Unavailable
from benchmarks.load import Texts, texts
from headroom.loadtest.server import DIRECT, free_port

TITLES = 20
"""Titles of a request."""

CONFIG = ROOT / "deploy" / "serve.yaml"
TRIES = 10
"""How often a request is tried that gets 429; a server just started does not know yet how fast it is."""

READY_S = 150.0
STOP_S = 60.0
IN_A_ROW = 30
"""Answers in a row that must know a new variant; replicas answer in turn."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    pid: process id of the driver. start_s: seconds until its first answer. config: its config file, which may
    be edited.
    """

    url: str
    pid: int
    start_s: float
    config: Path = CONFIG


@contextmanager
def started(command: Sequence[str], env: Mapping[str, str], name: str) -> Iterator[Server]:
    """Run a command, whose {port} is replaced, until the block ends. Raises Unavailable.

    name: of its log in runs/bench-logs.
    """
    port = free_port()
    log = environments.RUNS / "bench-logs" / f"{name.replace(' ', '-').replace(',', '')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            [word.replace("{port}", str(port)) for word in command],
            cwd=ROOT,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, log)
        yield Server(url, process.pid, time.monotonic() - began)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the rest of its session
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            ask(url, texts(TITLES, 1)[0])
            return
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            if process.poll() is not None:
                break
            time.sleep(0.2)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise Unavailable(f"did not become ready: {lines[-1] if lines else 'it said nothing'}")


@contextmanager
def headroom(
    config: Path = CONFIG, model: Path | None = None, replicas: int | None = None
) -> Iterator[Server]:
    """Run `headroom serve` with a copy of a config file, in which model and replicas are replaced."""
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(shutil.copy(config, Path(scratch, "serve.yaml")))
        command = [str(Path(sys.executable).with_name("headroom")), "serve", "--port", "{port}"]
        command += ["--config", str(copied)]
        command += [] if model is None else ["--model", str(model)]
        command += [] if replicas is None else ["--replicas", str(replicas)]
        variables = {
            "HEADROOM_DATABASE_URL": f"sqlite:///{scratch}/experiments.db",
            "PYTHONPATH": environments.PYTHONPATH,  # a replica may be one of benchmarks.front_engine
        }
        with started(command, {**os.environ, **variables}, "headroom") as server:
            yield Server(server.url, server.pid, server.start_s, copied)


Start = Callable[..., AbstractContextManager[Server]]
"""Starts a server. Takes the arguments of `headroom`."""


def ask(url: str, request: Texts) -> list[float]:
    """Return expected grades in the order of the titles. Raises OSError, ValueError, KeyError."""
    body = json.dumps({"query": request[0], "titles": request[1]}).encode()
    post = urllib.request.Request(f"{url}/v1/score", body, {"content-type": "application/json"})
    for _ in range(TRIES):
        try:
            with DIRECT.open(post, timeout=60) as answer:
                results = json.loads(answer.read())["results"]
            break
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(float(error.headers.get("retry-after", 1)))
    else:
        raise OSError(f"still 429 after {TRIES} tries")
    by_index = sorted(results, key=lambda result: result["index"])
    return [float(result["expected_grade" if "expected_grade" in result else "score"]) for result in by_index]


def replicas(server: Server) -> list[psutil.Process]:
    """Return the processes of our server's replicas."""
    return [
        process
        for process in psutil.Process(server.pid).children(recursive=True)
        if "ServeReplica" in " ".join(process.cmdline())
    ]


def memory_of(server: Server) -> int:
    """Return the resident bytes of our server's replicas."""
    return sum(process.memory_info().rss for process in replicas(server))


def add_variant(server: Server, name: str, head_mask: str) -> None:
    """Add a variant to the config file of a running server; return when all replicas probably know it.

    Raises TimeoutError.
    """
    text = server.config.read_text("utf-8")
    first = next(line for line in text.splitlines() if "- {name: full}" in line)
    added = first.replace("{name: full}", f'{{name: {name}, head_mask: "{head_mask}"}}')
    server.config.write_text(text.replace(first, f"{first}\n{added}"), "utf-8")
    _wait_until_listed(server, "variants", name)


def begin_interleaving(server: Server, name: str, treatment: str) -> None:
    """Begin an experiment that interleaves `full` with another variant for all units of a running server.

    Return when it probably runs on all replicas. Raises TimeoutError.
    """
    text = server.config.read_text("utf-8")
    first = next(line for line in text.splitlines() if line.strip() == "variants:")
    indent = first.removesuffix("variants:")
    arms = f"[{{name: control, variant: full}}, {{name: treatment, variant: {treatment}}}]"
    added = (
        f"{indent}experiments:\n{indent}  - {{name: {name}, kind: interleave, salt: {name}, arms: {arms}}}"
    )
    server.config.write_text(text.replace(first, f"{added}\n{first}"), "utf-8")
    _wait_until_listed(server, "experiments", name, status="running")


def _wait_until_listed(server: Server, what: str, name: str, **fields: str) -> None:
    """Return when the list `/v1/{what}` of all replicas probably has an entry of this name and fields."""
    wanted = {"name": name, **fields}
    deadline = time.monotonic() + 20
    in_a_row = 0
    while in_a_row < IN_A_ROW:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server's {what} lack {name!r}")
        with DIRECT.open(f"{server.url}/v1/{what}", timeout=5) as response:
            listed: list[dict[str, Any]] = json.load(response)[what]
        is_there = any(all(entry[key] == wanted[key] for key in wanted) for entry in listed)
        in_a_row = in_a_row + 1 if is_there else 0
        time.sleep(0.02)


def counters(server: Server) -> dict[str, float]:
    """Return the values of the server's metrics, those of all labels added up, by name."""
    totals: dict[str, float] = {}
    with DIRECT.open(f"{server.url}/metrics", timeout=5) as response:
        for line in response.read().decode().splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                totals[name] = totals.get(name, 0.0) + float(value)
    return totals
