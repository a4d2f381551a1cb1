"""A real `headroom serve` in a process of its own, for the tests that need the whole way."""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from headroom.loadtest.server import free_port
from tests.service.client import request, send_raw

PATIENCE_S = 100.0
"""How long a test waits for what must happen sooner or later, however slow the machine."""
DEPLOY = Path(__file__).parents[2] / "deploy" / "serve.yaml"
LEAN = Path(__file__).with_name("lean")
"""Goes on the path of a service: it starts as where pandas is not installed."""

LIVE: dict[str, Any] = {
    "masks": {"lower": "2.*"},
    "variants": [
        {"name": "full"},
        {"name": "masked", "head_mask": "@lower"},
        {"name": "pruned", "head_mask": "@lower", "sliced": True},
    ],
}


class Server:
    """`headroom serve` on a free port with a config file of its own.

    replicas: None leaves their number to the machine. environment: added to this process's. start_s: how long
    it took to get ready.
    """

    def __init__(
        self,
        directory: Path,
        model: Path,
        *,
        live: Mapping[str, Any] = LIVE,
        replicas: int | None = 1,
        host: str | None = None,
        environment: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = directory / "serve.yaml"
        self._errors = directory / "stderr"
        self.write_config(live, arguments)
        self.start_s = math.inf
        self._began = time.monotonic()
        command = [Path(sys.executable).with_name("headroom"), "serve", "--config", self.config]
        command += ["--port", str(self.port), "--model", model, "--device", "cpu"]
        if replicas is not None:
            command += ["--replicas", str(replicas)]
        if host is not None:
            command += ["--host", host]
        variables = {"XDG_STATE_HOME": str(directory / "state"), "PYTHONPATH": lean_path()}
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, **variables, **(environment or {})},
            )

    def write_config(self, live: Mapping[str, Any], arguments: Mapping[str, Any] | None = None) -> None:
        """Write deploy/serve.yaml with these variants, and with limits that a test can wait for."""
        self.live = live
        document = yaml.safe_load(DEPLOY.read_text())
        document["http_options"]["request_timeout_s"] = 10
        application = document["applications"][0]
        limits = {"request_timeout_s": 10, "max_queue_s": 60}
        application["args"] = limits | dict(arguments or {})
        application["deployments"][0]["user_config"] = live
        self.config.write_text(yaml.safe_dump(document))

    def edit(self, live: Mapping[str, Any]) -> None:
        """Write another live config, and wait until it is in force."""
        applied = self.stderr.count("config applied")
        self.write_config(live)
        while self.stderr.count("config applied") == applied:  # pytest's timeout is the limit
            time.sleep(0.1)

    def wait_until_ready(self) -> str:
        """Wait for the line with the URL and return it; it is empty if the process ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        self.start_s = time.monotonic() - self._began
        return line

    @property
    def stderr(self) -> str:
        return self._errors.read_text()

    def wait_for_line(self, text: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait for the first line on stderr that contains `text`, and return it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            whole_lines = self.stderr.rpartition("\n")[0]  # the program may be writing the last one
            for line in whole_lines.splitlines():
                if text in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f"no line with {text!r} in:\n{self.stderr}")

    def family(self) -> list[psutil.Process]:
        """Return all processes of this run."""
        driver = psutil.Process(self.process.pid)
        return [driver, *driver.children(recursive=True)]

    def run_directories(self) -> set[Path]:
        """Return the directory of this run, if it has one yet."""
        files = psutil.Process(self.process.pid).open_files()
        return {Path(file.path).parent for file in files if file.path.endswith("/run.lock")}

    def listening(self) -> list[tuple[psutil.Process, str, int]]:
        """Return process, address and port of every socket that a process of this run listens on."""
        found = []
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                connections = process.net_connections(kind="inet")
                found += [(process, *each.laddr) for each in connections if each.status == psutil.CONN_LISTEN]
        return found

    def ports(self) -> set[tuple[str, int]]:
        """Return address and port of every socket that a process of this run listens on."""
        return {(address, port) for _, address, port in self.listening()}

    def ports_open_to_others(self) -> set[int]:
        """Return those of `ports` that take a connection from another machine.

        Who listens on 127.0.0.1 does not listen on 127.0.0.2, and who listens on every interface does.
        """
        found = set()
        for _, port in self.ports():
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=10).close()
                found.add(port)
        return found

    def replicas(self) -> list[psutil.Process]:
        """Return the processes of the replicas."""
        return replicas_among(self.family())

    def replica(self) -> psutil.Process:
        """Return the process of the only replica."""
        (replica,) = self.replicas()
        return replica

    async def own_ports(self) -> list[int]:
        """Return the port of each ready replica's own HTTP server, so that a test chooses the replica."""
        replicas = self.replicas()
        ports = []
        for process, _, port in self.listening():
            if process in replicas:
                with contextlib.suppress(TimeoutError):  # not HTTP
                    answer = await send_raw(port, request("GET", "/health/ready"), timeout_s=3)
                    ports += [port] * (answer.status == 200)
        return ports

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """Ask the program to stop and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """End whatever is left, for example after a test that failed."""
        if self.process.poll() is None:
            for process in reversed(self.family()):
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended with another
                    process.kill()
            self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


def lean_path() -> str:
    """Return this process's PYTHONPATH with LEAN before it."""
    return os.pathsep.join(filter(None, (str(LEAN), os.environ.get("PYTHONPATH"))))


def replicas_among(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return those that are replicas."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if "ServeReplica" in " ".join(process.cmdline()):
                found.append(process)
    return found


@contextlib.contextmanager
def running(directory: Path, model: Path, **options: Any) -> Iterator[Server]:
    """Run `headroom serve` until the block ends; it is ready, and at the end it must stop in order.

    options: of `Server`.
    """
    server = Server(directory, model, **options)
    try:
        line = server.wait_until_ready()
        assert line == f"headroom is ready at {server.url}", server.stderr
        yield server
        assert server.stop() == 0, server.stderr
    finally:
        server.kill()


@contextlib.contextmanager
def restarting(start: Callable[[], Server]) -> Iterator[Callable[[], Server]]:
    """Yield a function that returns a ready server: the last one, or a new one if a test has ended that.

    So tests that end their server run in any order with those that need it. start: begins a server.
    """
    servers: list[Server] = []

    def ready_server() -> Server:
        if not servers or servers[-1].process.poll() is not None:
            servers.append(start())
            assert servers[-1].wait_until_ready(), servers[-1].stderr
        return servers[-1]

    try:
        yield ready_server
        for server in servers:
            assert server.process.poll() is not None or server.stop() == 0, server.stderr
    finally:
        for server in servers:
            server.kill()


def still_there(processes: list[psutil.Process], timeout_s: float = PATIENCE_S) -> list[str]:
    """Return the command lines of the processes that have not ended within the timeout."""
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    found = []
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:80])
    return found
