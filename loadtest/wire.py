"""An HTTP/1.1 connection as an asyncio protocol: writes a request, reads its answer, names errors.

llhttp (through httptools) parses strictly, and nothing is sent twice. docs/decisions/003-load-client.md says
why we use no client library.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from headroom.loadtest.alarm import clock
from headroom.loadtest.workload import Request

MAX_BYTES = 64 * 2**20
"""Size above which an answer is cut off and counted as garbage."""


class Owner(Protocol):
    """The object that a connection reports to."""

    def answered(self, connection: Connection, request: Request, answer: Answer) -> None:
        """Called with a whole answer; the connection is free if `connection.usable`."""

    def failed(self, request: Request, kind: str, at: float) -> None:
        """Called if no answer will come; the connection is closed."""

    def ended(self, connection: Connection) -> None:
        """Called once, when the connection is closed."""


@dataclass(slots=True)
class Answer:
    """An answer, and when its last byte was read. reranked: what its header `x-reranked` says, or ""."""

    at: float = 0.0
    status: int = 0
    body: bytes = b""
    is_json: bool = False
    server_timing: bytes = b""
    reranked: str = ""


class Connection(asyncio.Protocol):
    """A keep-alive connection for one request at a time. The parser calls the methods named on_*."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._request: Request | None = None
        self._transport: asyncio.Transport | None = None
        self.usable = False

    def send(self, request: Request) -> None:
        """Write a request; the owner is told how it ends."""
        assert self._transport is not None
        self._request = request
        self._parts: list[bytes] = []
        self._bytes = 0
        self._answer: Answer | None = None
        self._transport.write(request.payload)

    def drop(self) -> None:
        """Close at once; the caller counts the request that was in flight."""
        self._request = None
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._request is None:  # the client sent no request
            self.drop()
            return
        self._bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("garbage")
            return
        if self._bytes > MAX_BYTES:
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
        self._sized = False
        self._until_close = False

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name)
        if size in (14, 17) and name.lower() in (b"content-length", b"transfer-encoding"):
            self._sized = True
        elif size == 13 and name.lower() == b"server-timing":
            assert self._answer is not None
            self._answer.server_timing = value
        elif size == 10 and name.lower() == b"x-reranked":
            assert self._answer is not None
            self._answer.reranked = str(value, "latin-1")
        elif size == 12 and name.lower() == b"content-type":
            assert self._answer is not None
            media_type, _, _ = value.partition(b";")
            self._answer.is_json = media_type.strip().lower() == b"application/json"  # RFC 9110, 8.3.1

    def on_headers_complete(self) -> None:
        assert self._answer is not None
        self._answer.status = self._parser.get_status_code()
        self._until_close = not self._sized

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._answer is None or self._answer.status < 200:  # such as 100 Continue; the answer follows
            self._answer = None
            return
        if not self._parser.should_keep_alive():
            self.usable = False
        self._complete()

    def _complete(self) -> None:
        request = self._request
        answer = self._answer
        if request is None or answer is None:
            return
        answer.at = clock()
        answer.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._request = None
        self._answer = None
        if not self.usable and self._transport is not None:
            self._transport.close()
        self._owner.answered(self, request, answer)

    def _fail(self, kind: str) -> None:
        request = self._request
        self.drop()
        if request is not None:
            self._owner.failed(request, kind, clock())
