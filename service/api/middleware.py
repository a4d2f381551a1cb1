"""The outermost layer of every request: its id, timing, metrics, and answers to what fails."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.body import send_and_drain
from service.api.edge import SAFE_REQUEST_ID
from service.api.errors import error_response
from service.api.keys import OPEN_PATHS
from service.errors import BodyTooLarge, InternalError, ShedReason, as_service_error
from service.observe.metrics import Metrics
from service.observe.record import Record, Telemetry

logger = logging.getLogger("headroom.api")

UNMATCHED = "unmatched"
"""The route label of paths that no route has."""

_UNTRACED_PATHS = OPEN_PATHS | {"/metrics"}
"""Paths that probes and browsers ask for all the time, and that do no work worth a trace."""


class RequestMiddleware:
    """The outermost layer: nothing leaves it but answers, each counted, timed and with a request id.

    HEAD is answered as GET without the body. Exceptions of any kind become the error shape; those that are
    not the caller's fault are logged with the request id.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, telemetry: Telemetry) -> None:
        self.app = app
        self.metrics = metrics
        self.telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        is_traced = scope["path"] not in _UNTRACED_PATHS
        exchange.record = self.telemetry.begin(scope, exchange.request_id, is_traced=is_traced)
        try:
            try:
                await self.app(exchange.scope, receive, exchange.send)
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as error:  # a panic of a library in Rust is no Exception
                if exchange.status:
                    raise  # half an answer is out; the server has to cut the connection
                self._count(error, exchange)
                response = error_response(error, exchange.scope)
                if isinstance(error, BodyTooLarge) and error.unread:
                    await send_and_drain(response, exchange.scope, receive, exchange.send)
                else:
                    await response(exchange.scope, receive, exchange.send)
        except asyncio.CancelledError:
            # The proxy in front gave up on this request, as it does when its client hangs up.
            if not exchange.status:
                exchange.status = 499
                self._shed("disconnect", exchange)
            raise
        finally:
            route, status, seconds = exchange.route(), exchange.status or 500, exchange.seconds()
            self.metrics.request(route, status, seconds)
            self.telemetry.end(exchange.record, route=route, status=status, seconds=seconds)

    def _count(self, error: BaseException, exchange: _Exchange) -> None:
        known = as_service_error(error)
        if known.shed is not None:
            self._shed(known.shed, exchange)
        if known.status == InternalError.status:
            logger.error("request %s failed", exchange.request_id, exc_info=error)

    def _shed(self, reason: ShedReason, exchange: _Exchange) -> None:
        self.metrics.shed(reason)
        exchange.record.shed = reason


class _Exchange:
    """One request and what is known of its answer so far."""

    record: Record

    def __init__(self, scope: Scope, send: Send) -> None:
        self._arrived = time.monotonic()
        self._send = send
        self._is_head = scope["method"] == "HEAD"
        self.scope: Scope = {**scope, "method": "GET"} if self._is_head else scope
        self.scope.setdefault("state", {})["arrived"] = self._arrived
        self.request_id = _request_id(scope)
        self.status = 0

    def seconds(self) -> float:
        """Return the time since the request came."""
        return time.monotonic() - self._arrived

    def route(self) -> str:
        """Return the path's template; a caller's own words never become a label."""
        path = getattr(self.scope.get("route"), "path", None)
        if path is None:
            app = self.scope.get("app")
            templates = {getattr(route, "path", None) for route in app.routes} if app is not None else set()
            path = self.scope["path"] if self.scope["path"] in templates else UNMATCHED
        return str(path)

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the request's id and timing in its head."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            if "server-timing" not in headers:
                headers["server-timing"] = f"total;dur={self.seconds() * 1000:.3f}"
        elif message["type"] == "http.response.body" and self._is_head:
            message = {**message, "body": b""}
        await self._send(message)


def _request_id(scope: Scope) -> str:
    """Return the caller's own id if it is short and plain, so that logs can be joined; else a new one."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    for name, value in headers:
        if name == b"x-request-id" and SAFE_REQUEST_ID.fullmatch(value):
            return value.decode("ascii")
    return uuid.uuid4().hex
