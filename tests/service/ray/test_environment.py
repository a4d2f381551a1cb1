"""What a run has for itself: its environment, where the operator's own stays, its ports, its directory."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ray._private.services import JEMALLOC_SO

from headroom.service.ray import cluster_variables, environment, run_directory
from headroom.service.ray.environment import FIRST_PORT, PORTS, RUNS, first_port
from headroom.service.ray.run_directory import MEMORY, RunDirectory, memory, sweep
from tests.service.running import Server


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Stands in for this process's environment; empty."""
    own: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", own)
    return own


def test_the_operators_options_of_jemalloc_hold_in_every_process(
    variables: dict[str, str], tmp_path: Path
) -> None:
    variables["MALLOC_CONF"] = "narenas:4"
    environment.prepare(tmp_path, request_timeout_s=10)
    assert variables["MALLOC_CONF"] == "narenas:4"
    assert not environment.replica_variables()


@pytest.mark.skipif(JEMALLOC_SO is None, reason="ray brings no jemalloc for this system")
def test_jemalloc_understands_what_it_is_told(variables: dict[str, str], tmp_path: Path) -> None:
    environment.prepare(tmp_path, request_timeout_s=10)
    replicas = environment.replica_variables()["MALLOC_CONF"]
    for told, understood in ((variables["MALLOC_CONF"], True), (replicas, True), ("narena:1", False)):
        own = {"LD_PRELOAD": str(JEMALLOC_SO), "MALLOC_CONF": f"abort_conf:true,{told}"}
        ended = subprocess.run([sys.executable, "-S", "-c", ""], env=own, capture_output=True, check=False)
        assert (ended.returncode == 0) is understood, ended.stderr


def test_another_cluster_of_rays_is_not_inherited(variables: dict[str, str], tmp_path: Path) -> None:
    variables.update(RAY_ADDRESS="10.0.0.1:6379", RAY_AUTH_TOKEN="theirs", RAY_USAGE_STATS_ENABLED="1")
    environment.prepare(tmp_path, request_timeout_s=10)
    assert variables.keys().isdisjoint(("RAY_ADDRESS", "RAY_AUTH_TOKEN"))
    assert variables["RAY_USAGE_STATS_ENABLED"] == "0"
    token = Path(variables["RAY_AUTH_TOKEN_PATH"])
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64


def test_a_node_of_a_cluster_gets_what_headroom_serve_sets_for_its_own_ray(
    variables: dict[str, str], tmp_path: Path
) -> None:
    variables.clear()  # pytest names the test in it
    environment.prepare(tmp_path, request_timeout_s=60)
    ours = {name: value for name, value in variables.items() if str(tmp_path) not in value}
    ours |= environment.replica_variables()  # there Ray's own processes share the replicas' environment
    printed = [sys.executable, "-m", "headroom.service.ray.cluster_variables"]
    lines = subprocess.run(printed, capture_output=True, text=True, check=True, env={}).stdout.splitlines()
    given = dict(line.split("=", 1) for line in lines)
    assert given == cluster_variables.variables()
    differ = {name for name, value in ours.items() if given.get(name) != value}
    assert differ == {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",  # keeps Ray's ports on the loopback interface
        "RAY_ENABLE_AUTO_CONNECT",  # the processes of a cluster connect when they start
        "RAY_memory_monitor_refresh_ms",  # a pod's memory limit may be watched
        "RAY_SERVE_HAPROXY_MAXCONN",  # here the limit of open files decides
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT",  # a node has its ports for itself
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S",  # several fronts take longer than one
    } | ({"RAY_SERVE_HAPROXY_NBTHREAD"} if ours["RAY_SERVE_HAPROXY_NBTHREAD"] != "1" else set())


def first_port_of_another_run() -> int:
    code = "from headroom.service.ray.environment import first_port; print(first_port())"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


async def test_the_replicas_of_a_service_listen_where_no_other_service_does(server: Server) -> None:
    """Serve's own range is the same for every service; the next one would take a dead replica's port."""
    connections = server.replica().net_connections(kind="tcp")
    listening = {found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN}
    (port,) = listening & set(range(FIRST_PORT, FIRST_PORT + RUNS * PORTS))
    first = first_port_of_another_run()
    assert port not in range(first, first + PORTS)


def test_a_run_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "FIRST_PORT", first_port())
    monkeypatch.setattr(environment, "RUNS", 1)
    with pytest.raises(OSError, match="no ports are left for replicas"):
        first_port.__wrapped__()


RUN = """
import sys, pathlib
from headroom.service.ray import run_directory
run_directory.PARENT = pathlib.Path(sys.argv[1])
directory = run_directory.RunDirectory()
(directory.path / "ray").mkdir()
(directory.path / "ray" / "log").write_text("a log")
(directory.path / "latest").symlink_to("ray")
print(directory.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the directories of runs."""
    monkeypatch.setattr(run_directory, "PARENT", tmp_path)
    return tmp_path


def start(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process with a run of its own, and the run's directory."""
    command = [sys.executable, "-c", RUN, str(parent)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_directory_of_a_killed_run_is_removed_by_the_next_and_that_of_a_live_one_stays(
    parent: Path,
) -> None:
    kept = parent / "kept"
    kept.write_text("")
    foreign = parent / "headroom-metrics"  # no run's
    foreign.mkdir()
    (parent / "headroom-link").symlink_to(foreign)
    killed, of_killed = start(parent)
    alive, of_alive = start(parent)
    try:
        (of_killed / "outside").symlink_to(kept)
        sweep()
        assert of_killed.exists()
        killed.kill()
        killed.wait()
        in_memory = memory(of_killed).resolve()
        assert in_memory.is_dir()
        mine = RunDirectory()
        assert not of_killed.exists()
        assert not in_memory.exists()
        assert (of_alive / "ray" / "log").read_text() == "a log"
        mine.remove()
        assert {*parent.iterdir()} == {kept, foreign, parent / "headroom-link", of_alive}
    finally:
        for process in (killed, alive):
            process.kill()
            process.communicate()
        sweep()


@pytest.mark.usefixtures("parent")
def test_the_logs_of_the_last_start_that_failed_are_kept() -> None:
    first = RunDirectory()
    in_memory = memory(first.path).resolve()
    first.keep_logs()
    assert not in_memory.exists(), "it would take memory for nothing"
    os.utime(first.path / "failed", (1, 1))
    second = RunDirectory()
    assert first.path.exists()
    second.keep_logs()
    sweep()
    assert (first.path.exists(), second.path.exists()) == (False, True)


@pytest.mark.usefixtures("parent")
def test_a_run_directory_is_for_its_owner_only() -> None:
    directory = RunDirectory()
    for each in (directory.path, memory(directory.path)):
        assert each.stat().st_mode & 0o777 == 0o700
    directory.remove()


@pytest.mark.skipif(not MEMORY.is_dir(), reason="this system has no directory in memory")
def test_what_is_written_while_serving_lies_on_no_disk_that_others_fill(server: Server) -> None:
    """A full /tmp killed replicas by SIGBUS: their metrics are files that they map."""
    (run,) = server.run_directories()
    metrics = Path(server.replica().environ()["PROMETHEUS_MULTIPROC_DIR"])
    haproxy = next(process for process in server.family() if process.name() == "haproxy")
    (config,) = (Path(word) for word in haproxy.cmdline() if word.endswith("haproxy.cfg"))
    assert list(metrics.glob("*.db"))
    for file in (metrics, config):
        assert file.stat().st_dev == MEMORY.stat().st_dev
        assert run in file.parents, "it is removed with the run"
