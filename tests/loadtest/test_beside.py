"""A port for a server that a load test starts."""

from __future__ import annotations

import socket
import subprocess
import sys

from loadtest import beside


def test_a_free_port_is_none_that_the_system_or_serve_gives_out() -> None:
    ports = [beside.free_port() for _ in range(50)]
    assert all(20_000 <= port < 30_000 for port in ports)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", ports[0]))


def test_no_two_calls_get_the_same_port_though_nobody_listens_yet() -> None:
    """Two servers that start at the same time would want the same port, and one of them would not start."""
    ours = {beside.free_port() for _ in range(50)}
    assert len(ours) == 50
    another = "from loadtest import beside; print(*(beside.free_port() for _ in range(500)))"
    theirs = subprocess.run(
        [sys.executable, "-c", another], capture_output=True, text=True, check=True
    ).stdout
    assert ours.isdisjoint(map(int, theirs.split()))
