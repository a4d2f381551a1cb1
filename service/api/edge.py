"""ASGI middleware at the edge of Ray Serve: makes what Serve itself reads and answers fit our contract.

Serve's HTTP servers (the proxy, and each replica's own when HAProxy is in front) wrap their application in
what `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=headroom.service.api.edge:middlewares` returns. It does four
things:

* removes the request headers with which a client could steer Serve (switch off its request timeout and its
  disconnect handling, pick a replica), before Serve reads them, and a stamp that HAProxy did not make;
* tells Serve in a replica, with the same headers, to leave clients and clocks of POST requests to us;
* has the stamp of HAProxy, which says when a request came there, so that its deadline counts from then, also
  if HAProxy sends it to a second replica because the first one died (service/ray/haproxy.cfg.jinja);
* replaces the errors that Serve makes itself (plain text, or none at all when a replica dies) by errors of
  our shape. Everything our application answers passes untouched: it marks its answers with a header (`MARK`),
  which is taken off here. So does what a replica tells HAProxy's health check, which reads the text (see
  service/ray/haproxy.cfg.jinja).

It imports neither ray nor the application, and costs a few microseconds a request.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import orjson
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headroom.service.api.errors import to_shaped_response
from headroom.service.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidHTTP,
    QueueFull,
    ReplicaLost,
    ServiceError,
    Unavailable,
)

STAMP = "x-headroom-received"
"""The header of the proxy's stamp: the machine's id, a semicolon, and microseconds since 1970. It replaces
whatever the caller sent under this name."""

MAX_STAMP_BYTES = 64

BODY_TIMEOUT_S = 15.0
"""Seconds in which a whole request body must arrive, at HAProxy and at a replica."""


def _machine() -> str:
    """Return what all processes of this machine know and no other machine has; empty if nothing is known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


MACHINE = _machine()

# Compared in lower case with "_" for "-", as Serve does.
_STEERING = (b"x_request_timeout_seconds", b"x_request_disconnect_disabled", b"x_session_id")
_STEERING_PREFIXES = (b"serve_multiplexed_model_id", b"x_serve_router_")
_REQUEST_ID = b"x-request-id"
_STAMP = STAMP.encode()
# POST routes watch client and clock themselves (`headroom.service.api.post`); Serve's watch costs two more
# tasks.
_WATCHED = [(b"x-request-disconnect-disabled", b"?1"), (b"x-request-timeout-seconds", b"0")]
SAFE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
"""Request ids that we take over. Serve decodes the header as UTF-8 and writes it into its logs; any other is
dropped, and Serve makes its own."""

MARK = "x-headroom-answer"
"""Header by which the application tells this layer that an answer is its own. No client sees it."""

_MARK = MARK.encode()
_HEALTH_CHECK = "/-/healthz"
_MADE_BY_SERVE: dict[int, Callable[[], ServiceError]] = {
    400: InvalidHTTP,
    404: Unavailable,  # our application owns "/", so "no such route" means that it is not deployed (any more)
    408: DeadlineExceeded,
    429: QueueFull,
    499: DeadlineExceeded,
    503: Unavailable,
}


def seconds_at_proxy(headers: Iterable[tuple[bytes, bytes]]) -> float:
    """Return how long ago this machine's proxy stamped a request; 0 if it did not.

    Another machine's clock may be wrong by more than a deadline. A forged stamp, from a caller that reaches a
    replica past HAProxy, could only shorten that caller's own deadline.
    """
    for name, value in headers:
        if name == _STAMP and len(value) <= MAX_STAMP_BYTES:
            machine, _, microseconds = str(value, "latin-1").partition(";")
            if MACHINE and machine == MACHINE and microseconds.isdecimal():
                return max(0.0, time.time() - int(microseconds) / 1e6)
    return 0.0


def middlewares() -> list[Middleware]:
    """Return the middlewares that Ray Serve asks for: Starlette middlewares, outermost last."""
    return [Middleware(Edge, in_replica=os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1")]


class Edge:
    """Wraps one ASGI application of Ray Serve. in_replica: it is a replica's own, and HAProxy in front."""

    def __init__(self, app: ASGIApp, *, in_replica: bool) -> None:
        self._app = app
        # In the replica's own server, no answer at all means that our application raised; in the proxy, that
        # the replica died during the request.
        self._in_replica = in_replica
        self._silence = InternalError if in_replica else ReplicaLost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (self._in_replica and scope["path"] == _HEALTH_CHECK):
            await self._app(scope, receive, send)
            return
        headers = [header for header in scope["headers"] if not _steers_serve(*header)]
        if not self._in_replica:  # HAProxy is not in front
            headers = [header for header in headers if header[0] != _STAMP]
        elif scope["method"] == "POST":
            headers += _WATCHED
        scope["headers"] = headers
        answer = _Answer(scope, send)
        try:
            await self._app(scope, receive, answer)
        except Exception:
            # If nothing was sent yet, the caller gets our shape; the server that runs us logs the cause.
            await answer.replace(InternalError())
            raise
        if not answer.started:
            await answer.replace(self._silence())


class _Answer:
    """An ASGI `send` that lets the application's own messages through and replaces those Serve made."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._replaced = False
        self.started = False

    async def __call__(self, message: Message) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            if message["status"] >= 400 and not _is_marked(message):
                await self.replace(_MADE_BY_SERVE.get(message["status"], InternalError)())
                return
            _tidy_headers(message)
        self.started = True
        await self._send(message)

    async def replace(self, error: ServiceError) -> None:
        """Sends `error` as the whole answer, unless one has begun."""
        if self.started:
            return
        self.started = self._replaced = True
        status, content, extra = to_shaped_response(error, self._scope)
        body = orjson.dumps(content)
        headers = {"content-type": "application/json", "content-length": str(len(body)), **extra}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": body})


def _steers_serve(name: bytes, value: bytes) -> bool:
    if name == _REQUEST_ID:
        return SAFE_REQUEST_ID.fullmatch(value) is None
    key = name.lower().replace(b"-", b"_")
    return key in _STEERING or key.startswith(_STEERING_PREFIXES)


def _is_marked(start: Message) -> bool:
    """Return whether our application made this answer."""
    return any(name.lower() == _MARK for name, _ in start.get("headers", ()))


def _tidy_headers(start: Message) -> None:
    """Take off the mark, and the request id that Serve adds to the one that our application sent already."""
    headers = [(bytes(name), value) for name, value in start.get("headers", ())]
    ids = [header for header in headers if header[0].lower() == _REQUEST_ID]
    others = [header for header in headers if header[0].lower() not in (_REQUEST_ID, _MARK)]
    start["headers"] = others + ids[:1]
