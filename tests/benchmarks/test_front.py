"""The benchmark of the front: that it runs, counts what it says, and says which target is missed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from benchmarks import front
from benchmarks.load import Client, bodies, texts


@pytest.mark.slow
def test_a_short_run_has_every_row(small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "cores", lambda: 1)
    report = front.measure(1, 0.5, small_checkpoint)
    assert [row.name for row in report.rows] == [
        f"pairs/s and core of front, 1 replica(s), {kind} texts" for kind in ("known", "new")
    ]
    assert all(float(row.value.split()[0].replace(",", "")) > 0 for row in report.rows)


def test_one_replica_and_several_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's speed changes within minutes, so only turns of the same minute can be compared."""
    loaded: list[int] = []

    @contextmanager
    def headroom(_: Path, __: Path, replicas: int) -> Iterator[int]:
        yield replicas

    def load_one(server: int, *_: object) -> float:
        loaded.append(server)
        return 40e3 if server == 1 else 30e3

    monkeypatch.setattr(front, "cores", lambda: 2)
    monkeypatch.setattr(front, "headroom", headroom)
    monkeypatch.setattr(front, "turn_of", load_one)
    report = front.measure(2, 0.1, Path())
    assert loaded == [1, 1, 2, 2, 1, 1, 2, 2]  # known and new texts of each
    assert report.missed == [
        f"the same over one replica's, 2 replica(s), {kind} texts: 75%, target ≥ 90%"
        for kind in ("known", "new")
    ]


def test_a_client_counts_answers_refusals_and_lost_connections() -> None:
    answers = [b"HTTP/1.1 200 OK", b"HTTP/1.1 429 Too Many Requests", None, b"HTTP/1.1 200 OK"]

    class Server(asyncio.Protocol):
        """Answers the first requests as listed, and closes the connection in place of an answer."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, _: bytes) -> None:
            answer = answers.pop(0)
            if answer is None:
                self.transport.abort()
            else:
                self.transport.write(answer + b"\r\ncontent-length: 2\r\n\r\nok")

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(Server, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with closing(Client(url, bodies(texts(1, 4))).start()) as client:
        deadline = time.monotonic() + 20
        while answers and time.monotonic() < deadline:
            time.sleep(0.01)
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert (client.answered, client.failed) == (2, 2)


def test_new_texts_never_come_again_and_are_as_long_as_real_ones() -> None:
    new, real = (texts(3, 50, new=is_new) for is_new in (True, False))
    titles = [title for _, some in new for title in some]
    assert len(set(titles)) == 150
    lengths = [sum(len(title.split()) for _, some in found for title in some) for found in (new, real)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.2)
    assert not {title for _, some in texts(3, 50, new=True, seed=1) for title in some} & set(titles)
