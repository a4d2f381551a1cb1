"""Reads a request's body, bounded in bytes and time; answers while one that is too large still arrives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from fastapi import Response
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from service.config.settings import Settings
from service.errors import BodyTooLarge, ClientDisconnected, RequestTimeout, UnsupportedMediaType

DRAIN_BYTES = 64_000_000
DRAIN_SECONDS = 10.0
"""The bytes of a refused body that are still read and thrown away, and for how long."""


def check_content_type(headers: Headers, *, others: Collection[str] = ()) -> None:
    """Accept JSON of any name.

    others: further types to accept; "" for a body that does not say what it is.

    Raises:
        UnsupportedMediaType: another type is named or none (as a web page of another origin could send it
            unasked), or the body is compressed.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not is_json and kind not in others:
        raise UnsupportedMediaType
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("Send the body as plain application/json, not compressed.")


async def read(receive: Receive, headers: Headers, settings: Settings) -> bytes:
    """Return the whole body.

    Raises:
        BodyTooLarge: as soon as it is, or before the first byte if Content-Length says so.
        RequestTimeout: the body had not ended in time.
        ClientDisconnected: the client hung up before its end.
    """
    max_bytes, timeout_s = settings.max_body_bytes, settings.body_timeout_s
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise _too_large(max_bytes, unread=True)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                chunk: bytes = message.get("body", b"")
                more: bool = message.get("more_body", False)
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes, unread=more)
                if chunk:
                    chunks.append(chunk)
                if not more:
                    return b"".join(chunks)
    except TimeoutError:
        raise RequestTimeout(f"The body was not received within {timeout_s:g} seconds.") from None


async def send_and_drain(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer while the request's body still arrives, then read on for a while before the end.

    The server closes the connection at the end of the answer. A client that is still writing then gets a
    reset, and most HTTP libraries report a broken pipe in place of the answer. So the answer goes out whole
    at once, and its end waits until the client has finished its body, or hung up, or `DRAIN_BYTES` or
    `DRAIN_SECONDS` are used up.
    """

    async def send_open(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "more_body": True}
        await send(message)

    await response(scope, receive, send_open)
    await _drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive) -> None:
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES:
                message = await receive()
                if not message.get("more_body", False):  # the end of the body, or a disconnect
                    return
                size += len(message.get("body", b""))


def _too_large(max_bytes: int, *, unread: bool) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the {max_bytes} bytes of one request.", unread=unread)
