"""A server with known delays, to test against: `python -m tests.loadtest.reference_server --delay 100ms`.

It answers every request after its delay with a minimal relevance answer for one title.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
from collections.abc import Iterator
from typing import cast

import uvloop

from loadtest.plan import seconds
from tests.loadtest.servers import BODY

ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b"server-timing: inference;dur=1.000, total;dur=1.500\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


class Reference(asyncio.Protocol):
    """One connection, which answers each whole request whatever it asks for."""

    def __init__(self, delays: Iterator[float]) -> None:
        self._delays = delays
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (size := _size(self._buffer)) is not None:
            self._buffer = self._buffer[size:]
            if delay := next(self._delays):
                asyncio.get_running_loop().call_later(delay, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(ANSWER)


def _size(buffer: bytes) -> int | None:
    """Return the bytes of the first request in the buffer; None if it is not complete."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = buffer[:end].lower()
    at = head.find(b"content-length:")
    length = int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0
    whole = end + 4 + length
    return whole if len(buffer) >= whole else None


async def serve(delays: Iterator[float], port: int) -> None:
    """Serve on 127.0.0.1 until SIGINT or SIGTERM, with the delays in turn; print the URL at first."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Reference(delays), "127.0.0.1", port, backlog=4096)
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await over.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", action="append", help="such as 100ms; several take turns; default: none")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    turns = itertools.cycle([seconds(delay) for delay in arguments.delay or ["0"]])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(turns, arguments.port))
