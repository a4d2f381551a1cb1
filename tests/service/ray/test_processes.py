"""Who hears a stop signal, and that a process neither outlives the Ray it depends on nor hangs in a stop."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headroom.service.ray import processes
from headroom.service.ray.processes import STOP_SIGNALS, Watchdog, ignoring_signals_in_children
from tests.service.running import PATIENCE_S, still_there

SAYS_WHAT_IS_BLOCKED = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
GRANDCHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAYS_WHAT_IS_BLOCKED!r}])"

SIGNALLED_MEANWHILE = """
import os, signal
from headroom.service.ray.processes import ignoring_signals_in_children

heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append("ours"))
with ignoring_signals_in_children():
    signal.signal(signal.SIGTERM, lambda *_: heard.append("Ray's"))
    os.kill(os.getpid(), signal.SIGTERM)
    print(heard)
print(heard)
"""


def test_child_processes_do_not_receive_stop_signals() -> None:
    with ignoring_signals_in_children():
        shown = subprocess.run([sys.executable, "-c", GRANDCHILD], capture_output=True, text=True, check=True)
    assert shown.stdout.count("Signals.SIG") == len(STOP_SIGNALS)
    after = subprocess.run([sys.executable, "-c", GRANDCHILD], capture_output=True, text=True, check=True)
    assert after.stdout == "[]\n"


def test_a_signal_that_comes_meanwhile_reaches_the_handler_from_before() -> None:
    """In a process of its own, with one thread as at the service's start: in another, Ray left threads."""
    shown = subprocess.run([sys.executable, "-c", SIGNALLED_MEANWHILE], capture_output=True, text=True)
    assert shown.stderr == ""
    assert shown.stdout == "[]\n['ours']\n"


HANGS_UP = """
import os, signal
from headroom.service.ray.processes import StopSignal

stop = StopSignal()
stop.install()
os.kill(os.getpid(), signal.SIGHUP)
print(stop.is_set())
"""


@pytest.mark.parametrize(
    ("starter", "stops"), [(["env", "--default-signal=HUP"], "True"), (["nohup"], "False")]
)
def test_a_closed_terminal_stops_the_service_as_sigterm_does_unless_nohup_started_it(
    starter: list[str], stops: str
) -> None:
    command = [*starter, sys.executable, "-c", HANGS_UP]
    shown = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (shown.returncode, shown.stdout) == (0, f"{stops}\n")


ON_RAY = """
import threading
import time
from headroom.service.cli.serve import _say
from headroom.service.ray import environment
from headroom.service.ray.processes import Watchdog, adopt_orphans, end_run
from headroom.service.ray.run_directory import RunDirectory

directory = RunDirectory()
environment.prepare(directory.path, request_timeout_s=10)
adopt_orphans()
guard = Watchdog(lambda reason: end_run(directory, reason, _say), lambda: False, 60.0)
from headroom.service.ray.cluster import Cluster

Cluster(directory.path, lambda: False, 60).start()
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
@pytest.mark.more
def test_the_death_of_a_program_that_ray_needs_is_named_and_leaves_nothing() -> None:
    """Ray does not start it again, and a call into it, as here, would wait for ever. Ray's library ends this
    process itself when the raylet is gone, which must not come first."""
    name = "raylet"
    command = [sys.executable, "-c", ON_RAY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            assert service.stderr is not None
            assert service.stdout.readline() == "watching\n", service.stderr.read()
            family = psutil.Process(service.pid).children(recursive=True)
            next(process for process in family if process.name() == name).kill()
            killed = time.monotonic()
            assert service.wait(PATIENCE_S) == 1
            assert time.monotonic() - killed < 10
            (line,) = [line for line in service.stderr if line.startswith("headroom: ")]  # Ray writes, too
            assert name in line.partition(" ended, and Ray cannot go on without it; ")[0]
            assert still_there(family) == []
        finally:
            service.kill()


STARTS_AGAIN = f"""
import contextlib, os, subprocess, threading
from headroom.service.cli.serve import _say
from headroom.service.ray.processes import STOP_SIGNALS, start_again
from headroom.service.ray.run_directory import RunDirectory

{SAYS_WHAT_IS_BLOCKED}
variables = dict(os.environ)
print(variables.get("RAY_ADDRESS"), subprocess.Popen(["sleep", "1000"]).pid, os.getcwd(), flush=True)
os.environ["RAY_ADDRESS"] = "of the first start"
directory = RunDirectory()

def end():
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # as the watchdog does
    start_again(directory, "raylet ended", variables, _say)

with contextlib.chdir(directory.path):  # as while Ray starts
    threading.Thread(target=end).start()
    threading.Event().wait()
"""


def test_a_start_whose_ray_ends_is_tried_once_more_as_if_it_were_the_first(tmp_path: Path) -> None:
    """On a machine without a free core Ray's raylet gives up its own agents after 15 seconds.

    `make serve` runs `.venv/bin/headroom`, a path from where it is typed.
    """
    (tmp_path / "program.py").write_text(STARTS_AGAIN)
    command = [sys.executable, "program.py"]
    service = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert service.returncode == 1
    blocked, children = service.stdout.splitlines()[::2], service.stdout.splitlines()[1::2]
    assert blocked == ["[]", "[]"]
    assert [line.split()[0] for line in children] == ["None", "None"]
    assert not any(psutil.pid_exists(int(line.split()[1])) for line in children)
    assert [line.split()[2] for line in children] == [str(tmp_path)] * 2
    first, second = service.stderr.splitlines()
    assert first.startswith("headroom: raylet ended; starting again (Ray's logs are in /tmp/headroom-")
    assert second.startswith("headroom: raylet ended; ending all processes (")


def test_a_stop_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOOK_S", 0.01)
    reasons: list[str] = []
    watching: Any = None

    def end(reason: str) -> None:
        reasons.append(reason)
        watching._closed.set()

    watching = Watchdog(end, lambda: True, 0.05)
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

    monkeypatch.setattr(processes, "LOOK_S", 0.01)
    monkeypatch.setattr(processes, "descendants_named", lambda _: {psutil.Process(): "raylet"})
    monkeypatch.setattr(processes, "has_ended", killed_meanwhile)
    watching = Watchdog(reasons.append, lambda: False, PATIENCE_S)
    made.set()
    watching._thread.join(PATIENCE_S)
    assert reasons == []
