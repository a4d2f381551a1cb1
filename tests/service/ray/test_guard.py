"""service.ray.guard: a process does not outlive the Ray that it depends on, nor hang in a stop."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import psutil
import pytest

from service.ray import guard
from service.ray.guard import Guard
from tests.service.running import PATIENCE_S, still_there

ON_RAY = """
import threading
import time
from service.ray import environment
from service.ray.guard import Guard, end_run
from service.ray.processes import adopt_orphans
from service.ray.run_directory import RunDirectory

directory = RunDirectory()
environment.prepare_tasks(directory.path)
adopt_orphans()
guard = Guard(lambda reason: end_run(directory, reason))
from service.ray.cluster import Cluster

Cluster(directory.path).start()
import ray

@ray.remote
def for_ever():
    time.sleep(1000)

work = for_ever.remote()
while len(guard._vital) < 4:
    time.sleep(0.1)
print("watching", flush=True)
ray.get(work)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent"])
def test_the_death_of_any_program_that_ray_needs_is_named_and_leaves_nothing(name: str) -> None:
    """Ray starts none of them again, and a call into it, as here, would wait for ever."""
    command = [sys.executable, "-c", ON_RAY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            assert service.stderr is not None
            assert service.stdout.readline() == "watching\n", service.stderr.read()
            processes = psutil.Process(service.pid).children(recursive=True)
            next(process for process in processes if process.name() == name).kill()
            killed = time.monotonic()
            assert service.wait(PATIENCE_S) == 1
            assert time.monotonic() - killed < 10
            (line,) = [line for line in service.stderr if line.startswith("headroom: ")]  # Ray writes, too
            assert name in line.partition(" ended, and Ray cannot go on without it; ")[0]
            assert still_there(processes) == []
        finally:
            service.kill()


def test_a_stop_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LOOK_S", 0.01)
    reasons: list[str] = []
    watching: Any = None

    def end(reason: str) -> None:
        reasons.append(reason)
        watching._closed.set()

    watching = Guard(end, lambda: True, 0.05)
    assert watching._closed.wait(PATIENCE_S)
    assert reasons == ["the stop has taken more than 0.05 s"]


def test_what_is_killed_on_purpose_while_it_is_looked_at_is_not_called_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second Ctrl-C kills Ray's processes in the middle of a look, and ends with its own status."""
    reasons: list[str] = []
    made = threading.Event()

    def killed_meanwhile(_: psutil.Process) -> bool:
        made.wait(PATIENCE_S)
        watching.close()
        return True

    monkeypatch.setattr(guard, "LOOK_S", 0.01)
    monkeypatch.setattr(guard, "named", lambda _: {psutil.Process(): "raylet"})
    monkeypatch.setattr(guard, "has_ended", killed_meanwhile)
    watching = Guard(reasons.append)
    made.set()
    watching._thread.join(PATIENCE_S)
    assert reasons == []
