"""Attacks: what a server may answer, and what is reported if it answers otherwise."""

import json
import socket

import pytest

from benchmarks.soak import attacks
from tests.loadtest import servers
from tests.loadtest.servers import faulty

pytestmark = pytest.mark.more

REFUSED = servers.says(b"408 Request Timeout", b"{}", b"connection: close\r\n")


@pytest.mark.parametrize(
    ("behaviour", "status", "wrong"),
    [
        (REFUSED, 0, ""),
        (servers.reset, 0, ""),
        (servers.says(b"503 Service Unavailable", b"{}"), 0, ""),
        (servers.says(b"500 Internal Server Error", b"{}"), 1, "500"),
        (servers.answer, 1, "200"),
        (servers.hang, 1, "hangs"),
    ],
)
def test_a_server_that_does_not_refuse_slow_requests_is_told(behaviour, status, wrong, capsys, monkeypatch):
    monkeypatch.setattr(attacks, "PATIENCE_S", 1.0 if behaviour is servers.hang else 60.0)
    monkeypatch.setattr(attacks, "LORISES", 8)
    whole = attacks.post(b"{}")  # for servers that wait for the end of a request
    monkeypatch.setattr(attacks, "STARTS", [("slow headers", whole), ("a slow body", whole)])
    with faulty(behaviour) as url:
        assert attacks.main(["slow-loris", url, "1s"]) == status
    said = json.loads(capsys.readouterr().out)
    assert sum(said["answers"].values()) >= 8
    assert {what.partition(": ")[2] for what in said["wrong"]} == ({wrong} if wrong else set())


@pytest.mark.parametrize("attack", attacks.ATTACKS)
def test_an_attack_that_reaches_no_server_is_told(attack, capsys):
    """A soak counts an attack that ends with status 1 as one that had no effect."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens, and nobody else can get the port
        assert attacks.main([attack, f"http://127.0.0.1:{closed.getsockname()[1]}", "0.1s"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["wrong"] == []


def test_an_attack_that_meets_a_server_succeeds():
    with faulty(servers.hang) as url:
        assert attacks.main(["hang-ups", url, "0.1s"]) == 0
