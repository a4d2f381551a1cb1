"""The client in a loop, and the texts that it sends."""

import asyncio
import threading
import time
from contextlib import closing

import pytest

from benchmarks.load import Client, bodies, texts

pytestmark = pytest.mark.more


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
