"""What clients that people really use get to read, from the real service behind its proxy."""

import asyncio
import io
import socket
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import requests

from tests.service.running import Server

TOO_LARGE = 12_000_000
"""Bytes: three times the limit, and more than any socket's buffers hold."""


def chunks() -> Iterator[bytes]:
    """A body whose length nobody announces."""
    for _ in range(TOO_LARGE // 100_000):
        yield b" " * 100_000


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
def test_a_body_too_large_is_refused_with_a_413_that_arrives(server: Server, announced: bool) -> None:
    for path in ("/v1/score", "/v1/outcomes"):
        body = b" " * TOO_LARGE if announced else chunks()
        answer = requests.post(f"{server.url}{path}", data=body, headers=JSON, timeout=20)
        assert (answer.status_code, b"body_too_large" in answer.content) == (413, True), path


async def test_a_body_too_large_is_refused_with_a_413_that_arrives_at_aiohttp(server: Server) -> None:
    sockets: list[socket.socket] = []

    def opened(address: tuple[Any, ...]) -> socket.socket:
        sockets.append(socket.socket(*address[:3]))
        return sockets[-1]

    connector = aiohttp.TCPConnector(socket_factory=opened)
    async with aiohttp.ClientSession(server.url, connector=connector, headers=JSON) as session:
        for _ in range(5):
            async with session.post("/v1/score", data=io.BytesIO(b" " * TOO_LARGE)) as response:
                assert response.status == 413
                assert (await response.json())["error"]["type"] == "body_too_large"
    # asyncio closes a connection only when all that was written is sent, or when the service has closed too.
    async with asyncio.timeout(20):
        while any(sock.fileno() != -1 for sock in sockets):
            await asyncio.sleep(0.01)
    assert sockets
