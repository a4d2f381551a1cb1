"""A port for a server that a load test starts."""

from __future__ import annotations

import socket

from loadtest import beside


def test_a_free_port_is_none_that_the_system_or_serve_gives_out() -> None:
    ports = [beside.free_port() for _ in range(50)]
    assert all(20_000 <= port < 30_000 for port in ports)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", ports[0]))
