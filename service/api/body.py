"""A request's body: read within limits of bytes and time, and parsed as strict JSON (RFC 8259).

orjson already refuses text that is not UTF-8, lone surrogates, NaN, numbers beyond a double and more than
1024 levels. This module adds a depth limit, a limit on values and keys, and an error for duplicate
keys, of which orjson keeps the last.
"""

import asyncio
import codecs
import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headroom.models.rows import duplicate_key
from headroom.service.api.edge import BODY_TIMEOUT_S
from headroom.service.config.settings import Settings
from headroom.service.errors import (
    BodyTooLarge,
    ClientDisconnected,
    InvalidJSON,
    QueueFull,
    RequestTimeout,
    UnsupportedMediaType,
)
from headroom.service.sentences import shortened

MAX_DEPTH = 32
"""The deepest nesting of a request's JSON; `[]` has depth 1."""

MAX_HELD_BYTES = 64_000_000
"""Bytes of request bodies that a replica holds at once, from their arrival to their answer."""

DRAIN_BYTES = 64_000_000
DRAIN_SECONDS = 10.0
"""The bytes of a refused body that are still read and thrown away, and for how long."""

_SIGNS = (b"[", b"{", b":", b",")  # one per array, object and key, and one per further value


class HeldBytes:
    """The bodies of the requests under way, so that many large ones at once cannot fill the memory.

    All of them have at most MAX_HELD_BYTES; a single body may have more.
    """

    def __init__(self) -> None:
        self._total = 0

    @contextlib.contextmanager
    def of_request(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that adds bytes to the request's, until the context ends. It raises QueueFull."""
        held = 0

        def add(size: int) -> None:
            nonlocal held
            held += size
            self._total += size
            if self._total > max(MAX_HELD_BYTES, held):
                raise QueueFull(message="Too many request bodies are held at once; try again later.")

        try:
            yield add
        finally:
            self._total -= held


async def read(
    receive: Receive,
    headers: Headers,
    settings: Settings,
    hold: Callable[[int], None],
    *,
    other_types: Collection[str] = (),
) -> bytes:
    """Return the whole body.

    hold: called with the size of each part that has come; see `HeldBytes`.
    other_types: content types to accept besides JSON of any name; "" for a body that does not say what it is.

    Raises:
        UnsupportedMediaType: another type is named or none (as a web page of another origin could send it
            unasked), or the body is compressed.
        BodyTooLarge: as soon as it is, or before the first byte if Content-Length says so.
        RequestTimeout: the body had not ended in time.
        ClientDisconnected: the client hung up before its end.
        QueueFull: too many bytes of other bodies are held.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not is_json and kind not in other_types:
        raise UnsupportedMediaType
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("Send the body as plain application/json, not compressed.")
    max_bytes = settings.max_body_bytes
    too_large = f"The body is larger than the {max_bytes} bytes of one request."
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise BodyTooLarge(too_large, unread=True)
    content = bytearray()
    more = True
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                part = message.get("body", b"")
                more = message.get("more_body", False)
                hold(len(part))
                content += part
                if len(content) > max_bytes:
                    raise BodyTooLarge(too_large, unread=more)
                if not more:
                    return bytes(content)
    except QueueFull as error:
        error.unread = more
        content.clear()  # the traceback keeps it while the answer is sent
        raise
    except TimeoutError:
        raise RequestTimeout(f"The body was not received within {BODY_TIMEOUT_S:g} seconds.") from None


async def send_and_drain(response: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
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
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES:
                message = await receive()
                if not message.get("more_body", False):  # the end of the body, or a disconnect
                    break
                size += len(message.get("body", b""))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def parse(content: bytes, *, max_parts: int) -> Any:
    """Return the value of a JSON document in UTF-8, which may begin with a byte order mark.

    max_parts: maximum values and keys together.

    Raises:
        InvalidJSON: empty, not UTF-8, not JSON, lone surrogates, NaN or infinities (also as 1e999), an object
            with the same key twice, nested deeper than `MAX_DEPTH`, or more than `max_parts` parts.
    """
    content = content.removeprefix(codecs.BOM_UTF8)  # a parser may ignore it (RFC 8259, section 8.1)
    if not content or content.isspace():
        raise InvalidJSON("The body is empty; send a JSON object.")
    if sum(map(content.count, _SIGNS)) > max_parts and _parts_outside_strings(content) > max_parts:
        raise InvalidJSON(
            f"The body holds more than {max_parts} arrays, objects and keys, other values included; send "
            "fewer items, or items with fewer fields."
        )
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidJSON(_sentence(error)) from None
    # A body has at most as many levels as brackets, and at most as many keys as colons. So most bodies need
    # neither of these checks.
    if content.count(b"[") + content.count(b"{") > MAX_DEPTH and _is_too_deep(value):
        raise InvalidJSON(_TOO_DEEP)
    keys = len(value) if isinstance(value, dict) else 0
    if content.count(b":") > keys and (twice := duplicate_key(content)) is not None:
        raise InvalidJSON(f'The key "{shortened(twice)}" appears twice in the same object.')
    return value


def _parts_outside_strings(content: bytes) -> int:
    """Return about the number of values and keys.

    There may be a million strings, and the other requests wait meanwhile: so there is no loop over them.
    """
    text = np.frombuffer(content.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    # 1 where the number of quotes so far is odd
    is_inside = np.bitwise_xor.accumulate((text == ord('"')).view(np.uint8))
    outside = text[is_inside == 0]
    return sum(int(np.count_nonzero(outside == ord(sign))) for sign in _SIGNS)


_TOO_DEEP = f"The body is nested more than {MAX_DEPTH} levels deep."


def _sentence(error: orjson.JSONDecodeError) -> str:
    reason = error.msg
    if "depth" in reason or "recursion" in reason:
        return _TOO_DEEP
    if "surrogate in string" in reason:
        reason = "a \\u escape is half of a surrogate pair"
    elif "UTF-8:" in reason:
        reason = "it is not UTF-8"
    return f"The body is not valid JSON: {reason} (line {error.lineno}, column {error.colno})."


def _is_too_deep(value: Any) -> bool:
    """Return whether containers nest deeper than `MAX_DEPTH`. No stack can overflow."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [each for each in level if isinstance(each, dict | list)]
        level = [
            child for each in containers for child in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(containers)
