"""Ports of its own for each run, so that no request reaches another run's replica."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from service.ray import ports
from tests.service.running import Server

ANOTHER_RUN = "from service.ray import ports; print(*ports.of_this_process()[:2])"


def of_another_run() -> range:
    """Return the ports that a process gets which starts now."""
    said = subprocess.run([sys.executable, "-c", ANOTHER_RUN], capture_output=True, text=True, check=True)
    return range(*map(int, said.stdout.split()))


def test_a_run_gets_no_port_of_another_until_that_ends() -> None:
    first, end, mark = ports.reserve()
    with mark:
        second = ports.reserve()
        with second.mark:
            assert end - first == second.end - second.first == ports.PORTS
            assert set(range(first, end)).isdisjoint(range(*second[:2]))
            assert set(range(first, end)).isdisjoint(of_another_run())


def test_the_ports_of_a_run_that_has_ended_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "FIRST", 15_000)  # which no other run on this machine takes meanwhile
    monkeypatch.setattr(ports, "RUNS", 1)
    for _ in range(2):
        again = ports.reserve()
        with again.mark:
            assert again.first == 15_000


def test_a_run_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, mark = ports.reserve()
    with mark:
        monkeypatch.setattr(ports, "FIRST", first)
        monkeypatch.setattr(ports, "RUNS", 1)
        with pytest.raises(OSError, match=rf"no ports are left for replicas: .* {first} to {first + 499}"):
            ports.reserve()


async def test_the_replicas_of_a_service_listen_where_no_other_service_does(server: Server) -> None:
    """Serve's own range is the same for every service; the next one would take a dead replica's port."""
    connections = server.replica().net_connections(kind="tcp")
    listening = {found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN}
    all_runs = range(ports.FIRST, ports.FIRST + ports.RUNS * ports.PORTS)
    (port,) = listening & set(all_runs)
    assert port not in of_another_run()
