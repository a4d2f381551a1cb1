"""The same limits behind a real server and real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import orjson
import uvicorn
from fastapi import FastAPI

from tests.service.api.test_api import SCORE, app_with, assert_error, metrics_of
from tests.service.fake_backend import FakeBackend

BODY = orjson.dumps(SCORE)
JSON = {"content-type": "application/json"}


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[tuple[str, int]]:
    """The app on a free port of the loopback interface."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(30):
            while not server.started:
                await asyncio.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield host, port
    finally:
        server.should_exit = True
        server.force_exit = True
        await task


async def exchange(address: tuple[str, int], *, head: bytes, parts: list[bytes]) -> bytes:
    """Send a request that does not end, and return the whole answer; nothing comes after it."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(head)
        for part in parts:
            writer.write(part)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        async with asyncio.timeout(20):
            answer = await reader.readuntil(b"\r\n\r\n")
            answer += await reader.readexactly(int(re.search(rb"content-length: (\d+)", answer, re.I)[1]))
            writer.write_eof()  # else the server waits for the rest of the body before it closes
            assert await reader.read() == b""
        return answer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(length: str) -> bytes:
    head = "POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}{length}\r\n\r\n".encode()


async def test_a_score_over_a_socket() -> None:
    async with (
        served(app_with()) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}", headers=JSON) as session,
    ):
        response = await session.post("/v1/score", content=BODY)
        assert response.status_code == 200
        assert response.json()["results"][0]["grade"] == 3
        assert "inference;dur=" in response.headers["server-timing"]
        head = await session.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        assert_error(await session.get("/nope"), 404, "not_found")
        assert (await session.post("/v1/score", content=BODY)).status_code == 200


async def test_a_body_that_never_ends_gets_its_408_over_a_socket() -> None:
    async with served(app_with(body_timeout_s=0.1)) as address:
        answer = await exchange(address, head=post("Content-Length: 1000"), parts=[b"{"])
        assert answer.startswith(b"HTTP/1.1 408")


async def test_a_body_too_large_gets_its_413_over_a_socket_announced_or_not() -> None:
    async with served(app_with(max_body_bytes=100_000)) as address:
        announced = await exchange(address, head=post("Content-Length: 1000000"), parts=[])
        assert announced.startswith(b"HTTP/1.1 413")
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        grown = await exchange(address, head=post("Transfer-Encoding: chunked"), parts=[piece] * 4)
        assert grown.startswith(b"HTTP/1.1 413")


async def test_hanging_up_cancels_the_work_over_a_socket() -> None:
    backend = FakeBackend(hangs=True)
    app = app_with(backend)
    async with served(app) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post(f"Content-Length: {len(BODY)}") + BODY)
        await backend.started.wait()
        assert not reader.at_eof()
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(10):
            while not metrics_of(app).get('headroom_requests_total{route="/v1/score",status="499"}'):
                await asyncio.sleep(0.01)
    assert backend.cancelled == 1
