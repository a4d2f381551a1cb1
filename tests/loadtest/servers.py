"""Servers of known behaviour, each on a free port of 127.0.0.1, for tests of the load tester.

`python -m tests.loadtest.servers --delay 100ms` answers every request after its delay, for one title.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import uvloop

from headroom.loadtest.alarm import clock
from headroom.loadtest.plan import seconds

answered: list[float] = []
"""When this process wrote its answers, if it is a server of known delays."""

BODY = b'{"variant":"full","results":[{"index":0,"score":0.5}]}'
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


class Reference:
    """`python -m tests.loadtest.servers` in a process of its own; it can be frozen and killed."""

    def __init__(self, delay: str) -> None:
        command = [sys.executable, "-m", "tests.loadtest.servers", "--delay", delay]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def freeze(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def answered(self) -> list[float]:
        """Return when it wrote its answers so far, on `loadtest.alarm.clock`, ascending."""
        assert self._process.stdout is not None
        os.kill(self._process.pid, signal.SIGUSR1)
        times: list[float] = json.loads(self._process.stdout.readline())
        return times

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.kill()


@contextmanager
def reference(delay: str = "0") -> Iterator[Reference]:
    """Answers after this delay."""
    server = Reference(delay)
    try:
        yield server
    finally:
        server.stop()


def answer(connection: socket.socket) -> None:
    connection.sendall(WHOLE)


def hang(connection: socket.socket) -> None:
    """Says nothing more; the caller leaves in the end."""
    while connection.recv(65536):
        pass
    raise ConnectionError


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionError


def close(_connection: socket.socket) -> None:
    raise ConnectionError


def garbage(connection: socket.socket) -> None:
    connection.sendall(b"\x00\x01 this is not HTTP\r\n\r\n")


def half(connection: socket.socket) -> None:
    connection.sendall(WHOLE[:-20])
    raise ConnectionError


def half_head(connection: socket.socket) -> None:
    connection.sendall(WHOLE[:30])
    raise ConnectionError


def says(status: bytes, body: bytes, more: bytes = b"") -> Callable[[socket.socket], None]:
    """Answers with this status and JSON body."""
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n"

    def behave(connection: socket.socket) -> None:
        connection.sendall(head % (status, more, len(body)) + body)

    return behave


Behaviour = Callable[[socket.socket], None]


@contextmanager
def faulty(*turns: Behaviour) -> Iterator[str]:
    """A server whose n-th request meets the n-th behaviour, in turn; yields its URL."""
    lock, served = threading.Lock(), [0]

    def serve(connection: socket.socket) -> None:
        buffer = b""
        with connection:
            while True:
                try:
                    while b"\r\n\r\n" not in buffer:
                        buffer += _some(connection)
                    head, _, buffer = buffer.partition(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length:")[2].split(b"\r")[0] or 0)
                    while len(buffer) < length:
                        buffer += _some(connection)
                    buffer = buffer[length:]
                    with lock:
                        behave = turns[served[0] % len(turns)]
                        served[0] += 1
                    behave(connection)
                except OSError:
                    return

    listener = socket.create_server(("127.0.0.1", 0), backlog=512)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(30)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError
    return data


ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b"server-timing: inference;dur=1.000, total;dur=1.500\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


class Delayed(asyncio.Protocol):
    """One connection, which answers each whole request whatever it asks for."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (size := _size(self._buffer)) is not None:
            self._buffer = self._buffer[size:]
            if self._delay:
                asyncio.get_running_loop().call_later(self._delay, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(ANSWER)
            answered.append(clock())


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


async def serve(delay: float, port: int) -> None:
    """Serve on 127.0.0.1 until SIGINT or SIGTERM, with this delay in seconds; print the URL at first."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Delayed(delay), "127.0.0.1", port, backlog=4096)
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    loop.add_signal_handler(signal.SIGUSR1, lambda: print(json.dumps(answered), flush=True))
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await over.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", default="0", help="such as 100ms; default: none")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(seconds(arguments.delay), arguments.port))
