"""The benchmark of the front: that it runs, counts what it says, and says which target is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import front
from benchmarks.front_client import Reading, Traffic, load


def row(rate: float) -> dict[str, Any]:
    return {
        "pairs_per_cpu_s": rate,
        "pairs_per_s": 9000.0,
        "front_ms": 0.6,
        "haproxy_ms": 0.05,
        "range": [rate - 1, rate + 1],
    }


def result(one: float, two: float) -> dict[str, Any]:
    replicas = {"1": {"known": row(one), "new": row(one)}, "2": {"known": row(two), "new": row(one)}}
    return {"machine": "a machine", "rounds": 1, "replicas": replicas}


@pytest.mark.slow
def test_a_short_run_has_every_row(small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "cores", lambda: 1)
    run = front.measure(1, 0.5, small_checkpoint)

    assert run["replicas"].keys() == {"1"}
    for texts in ("known", "new"):
        assert all(run["replicas"]["1"][texts][name] > 0 for name in ("pairs_per_s", "front_ms"))
    assert front.as_markdown(run).count("\n|") == 2 + 2


def test_one_replica_and_several_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's speed changes within minutes, so only turns of the same minute can be compared."""
    loaded: list[int] = []

    @contextmanager
    def served(_: Path, __: Path, ___: Path, replicas: int) -> Iterator[int]:
        yield replicas

    def load_one(server: int, *_: object) -> dict[str, float]:
        loaded.append(server)
        return {name: value for name, value in row(30e3 + server).items() if name != "range"}

    monkeypatch.setattr(front, "cores", lambda: 2)
    monkeypatch.setattr(front, "served", served)
    monkeypatch.setattr(front, "_turn", load_one)
    run = front.measure(2, 0.1, Path())
    assert loaded == [1, 1, 2, 2, 1, 1, 2, 2]  # known and new texts of each
    assert run["replicas"]["2"]["new"]["pairs_per_cpu_s"] == 30e3 + 2


@pytest.mark.parametrize(("one", "two", "lines"), [(30e3, 29e3, 0), (24e3, 24e3, 4), (40e3, 30e3, 1)])
def test_a_missed_target_is_told(one: float, two: float, lines: int) -> None:
    assert len(front.missed(result(one, two))) == lines


@pytest.mark.parametrize("is_early", [False, True])
def test_a_request_whose_connection_is_lost_has_failed(is_early: bool) -> None:
    """Even before the count begins: the connection is missing from then on."""

    class Server(asyncio.Protocol):
        """Closes each connection at its second request, with or without having answered the first late."""

        requests = 0

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, _: bytes) -> None:
            self.requests += 1
            if self.requests == 2:
                self.transport.abort()
                return
            whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
            wait = 0.0 if is_early else 0.7
            asyncio.get_running_loop().call_later(wait, self.transport.write, whole)

    async def measured() -> Reading:
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        requests = Traffic(1, new=False).requests(1, "localhost")
        reading = await load(url, requests, connections=3, seconds=0.6, at_edge=lambda: None)
        server.close()
        return reading

    assert asyncio.run(measured()).failed == 3


def test_new_texts_never_come_again_and_known_ones_do() -> None:
    new = list(Traffic(3, new=True).requests(50, "host"))
    assert len(set(new)) == len(new) == 50
    texts = [text for request in new for text in request.partition(b"[")[2].split(b'", "')]
    assert len(set(texts)) == 150

    known = Traffic(3, new=False).requests(0, "host")
    some = [next(known) for _ in range(700)]
    assert len(set(some)) <= 300
