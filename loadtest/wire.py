"""One HTTP/1.1 connection as an asyncio protocol: writes a request, reads one answer, names what goes wrong.

llhttp (through httptools) parses, strictly; nothing is ever sent twice. Why not a client library:
docs/decisions/003-load-client.md.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools

from loadtest.alarm import clock
from loadtest.workload import Request

MOST_BYTES = 64 * 2**20
"""An answer that goes on beyond this is cut off and counted as garbage."""


class Owner(Protocol):
    """Who hears about a connection."""

    def answered(self, connection: Connection, request: Request, answer: Answer) -> None:
        """The whole answer is there; the connection is free if `connection.usable`."""

    def failed(self, request: Request, kind: str, at: float) -> None:
        """There will be no answer; the connection is closed."""

    def ended(self, connection: Connection) -> None:
        """The connection is no more; called once."""


class Answer:
    """What came back, and when its last byte was read."""

    __slots__ = ("at", "body", "is_json", "server_timing", "status")

    def __init__(self) -> None:
        self.at = 0.0
        self.status = 0
        self.body = b""
        self.is_json = False
        self.server_timing = b""


class Connection(asyncio.Protocol):
    """Keep-alive, one request at a time. Methods named on_* are the parser's."""

    __slots__ = (
        "_answer",
        "_bytes",
        "_owner",
        "_parser",
        "_parts",
        "_request",
        "_sized",
        "_transport",
        "_until_close",
        "usable",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._request: Request | None = None
        self._transport: asyncio.Transport | None = None
        self.usable = False

    def send(self, request: Request) -> None:
        """Writes a request; the owner hears how it ended."""
        assert self._transport is not None
        self._request = request
        self._parts: list[bytes] = []
        self._bytes = 0
        self._answer: Answer | None = None
        self._transport.write(request.payload)

    def drop(self) -> None:
        """Closes at once; whatever was under way is the caller's to count."""
        self._request = None
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._request is None:  # nobody asked
            self.drop()
            return
        self._bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("garbage")
            return
        if self._bytes > MOST_BYTES:
            self._fail("garbage")

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        answer = self._answer if self._request is not None else None
        if answer is not None and self._until_close and error is None:
            self._complete()
        elif error is not None:
            self._fail("reset")
        else:
            self._fail("half_answer" if self._request is not None and self._bytes else "closed")
        self._owner.ended(self)

    def on_message_begin(self) -> None:
        self._answer = Answer()
        self._sized = self._until_close = False

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name)
        if size in (14, 17) and name.lower() in (b"content-length", b"transfer-encoding"):
            self._sized = True
        elif size == 13 and name.lower() == b"server-timing":
            assert self._answer is not None
            self._answer.server_timing = value
        elif size == 12 and name.lower() == b"content-type":
            assert self._answer is not None
            self._answer.is_json = value.startswith(b"application/json")

    def on_headers_complete(self) -> None:
        assert self._answer is not None
        self._answer.status = self._parser.get_status_code()
        self._until_close = not self._sized

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._answer is None or self._answer.status < 200:  # 100 Continue and its like announce the answer
            self._answer = None
            return
        if not self._parser.should_keep_alive():
            self.usable = False
        self._complete()

    def _complete(self) -> None:
        request, answer = self._request, self._answer
        if request is None or answer is None:
            return
        answer.at = clock()
        answer.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._request = self._answer = None
        if not self.usable and self._transport is not None:
            self._transport.close()
        self._owner.answered(self, request, answer)

    def _fail(self, kind: str) -> None:
        request = self._request
        self.drop()
        if request is not None:
            self._owner.failed(request, kind, clock())
