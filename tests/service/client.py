"""Sends HTTP by hand, because no client library would send such requests."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """An answer. status 0: the connection ended without a whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send_raw(port: int, data: bytes, *, timeout_s: float = 30.0) -> Answer:
    """Open a connection, write `data`, and read one answer."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return Answer(0, {}, b"", loop.time() - started)
    try:
        async with asyncio.timeout(timeout_s):
            writer.write(data)
            status, headers, body = await _read(reader)
    finally:
        writer.transport.abort()  # `close` would wait for the rest of a body that was refused unread
    return Answer(status, headers, body, loop.time() - started)


async def _read(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, {}, b""
    return int(first.split()[1]), headers, body


async def send_until_refused(port: int, data: bytes, *, keeps: bool) -> list[int]:
    """Send a request again and again until nobody listens on the port; return the statuses of the answers.

    keeps: use a connection for as many requests as the server allows. Status 0: a connection ended without an
    answer. One that was new does not count if the port is closed then: nobody had accepted it.
    """
    statuses: list[int] = []
    is_new = True
    if keeps:
        data = data.replace(b"connection: close\r\n", b"")
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return statuses[:-1] if statuses[-1:] == [0] and is_new else statuses
        is_new, is_open = True, True
        while is_open:
            writer.write(data)
            status, headers, _ = await _read(reader)
            statuses.append(status)
            if status == 503:  # without a rest, refusals take the core that the accepted requests need
                await asyncio.sleep(0.02)
            is_open = status != 0 and keeps and headers.get("connection") != "close"
            is_new = is_new and status == 0
        writer.transport.abort()


def request(method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
    """Return a request with a body as bytes. headers: further lines, each ending in CRLF."""
    kind = "content-type: application/json\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{kind}{headers}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body


async def metric(port: int, *names: str) -> float:
    """Return the sum of the samples whose lines start with one of these."""
    answer = await send_raw(port, request("GET", "/metrics"))
    assert answer.status == 200, answer
    lines = answer.body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(names))


def score(titles: int = 1, **more: Any) -> bytes:
    """Return a POST /v1/score with this many different titles."""
    words = ("steel angle bracket", "wood deck screws", "usb charger cable", "kitchen lamp")
    texts = [f"{words[i % len(words)]} {i}" for i in range(titles)]
    return request(
        "POST", "/v1/score", json.dumps({"query": "angle bracket", "titles": texts} | more).encode()
    )
