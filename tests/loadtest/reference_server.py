"""A server with known delays, to test against: `python -m tests.loadtest.reference_server --delay 100ms`.

It answers every request after its delay with a minimal relevance answer for one title. The alarm that the
client sends requests with times the delays as well. Without a delay, it serves benchmarks of the send rate.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import signal
from collections.abc import Callable, Sequence
from typing import cast

import uvloop

from loadtest.alarm import Alarm, clock
from loadtest.plan import seconds

BODY = b'{"variant":"full","results":[{"index":0,"score":0.5}]}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b"server-timing: inference;dur=1.000, total;dur=1.500\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


class Delays:
    """Runs callbacks after exact delays, in the order in which they are due."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._alarm = Alarm(self._ring)

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        """Run the callback in `delay` seconds."""
        when = clock() + delay
        heapq.heappush(self._due, (when, next(self._order), callback))
        if self._due[0][0] == when:
            self._alarm.set(when)

    def _ring(self) -> None:
        while self._due and self._due[0][0] <= clock():
            heapq.heappop(self._due)[2]()
        if self._due:
            self._alarm.set(self._due[0][0])


class Reference(asyncio.Protocol):
    """One connection, which answers each whole request whatever it asks for."""

    def __init__(self, delays: Sequence[float], timer: Delays, turn: itertools.count[int]) -> None:
        self._delays, self._timer, self._turn = delays, timer, turn
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (size := _size(self._buffer)) is not None:
            self._buffer = self._buffer[size:]
            delay = self._delays[next(self._turn) % len(self._delays)]
            if delay:
                self._timer.after(delay, self._answer)
            else:
                self._answer()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None

    def _answer(self) -> None:
        if self._transport is not None:
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


async def serve(delays: Sequence[float], port: int, ready: Callable[[int], None]) -> None:
    """Serve on 127.0.0.1 until SIGINT or SIGTERM, with the delays in turn; call `ready` with the port."""
    loop = asyncio.get_running_loop()
    timer, turn = Delays(), itertools.count()
    server = await loop.create_server(lambda: Reference(delays, timer, turn), "127.0.0.1", port, backlog=4096)
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    ready(server.sockets[0].getsockname()[1])
    await over.wait()


def main() -> None:
    """Run the program; it prints the URL when it listens."""
    parser = argparse.ArgumentParser(prog="python -m tests.loadtest.reference_server", description=__doc__)
    parser.add_argument(
        "--delay", action="append", help="delay such as 100ms; several take turns; default: none"
    )
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    delays = [seconds(delay) for delay in arguments.delay or ["0"]]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(delays, arguments.port, lambda port: print(f"http://127.0.0.1:{port}", flush=True)))


if __name__ == "__main__":
    main()
