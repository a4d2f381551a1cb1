"""The ASGI application, put together, and the layers around its routes.

The outermost layer gives each request its id, and times and counts it. The innermost checks its key. Nothing
leaves it but answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headroom.service.api.body import HeldBytes, send_and_drain
from headroom.service.api.clients import add_compat_routes
from headroom.service.api.edge import MARK, SAFE_REQUEST_ID, seconds_at_proxy
from headroom.service.api.errors import error_response, json_response, to_invalid_request
from headroom.service.api.keys import check_caller
from headroom.service.api.openapi import complete
from headroom.service.api.pages import DOCS_PATH, FACTS_HEADER, add_pages, docs_asking_for_key, facts_version
from headroom.service.api.post import REFUSAL, PostRoute, post_routes
from headroom.service.api.routes import add_routes
from headroom.service.config.key_file import key_ring
from headroom.service.config.keys import KeyRing
from headroom.service.config.settings import Settings
from headroom.service.errors import (
    ClientDisconnected,
    Forbidden,
    InternalError,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    ShedReason,
    Unauthorized,
    as_service_error,
    to_response,
)
from headroom.service.observe.access_log import PROBES, AccessLog, Record, current
from headroom.service.observe.metrics import Metrics

if TYPE_CHECKING:
    from headroom.service.observe.traces import Traces

API_VERSION = "1"

logger = logging.getLogger("headroom.api")

UNMATCHED = "unmatched"
"""The route label of paths that no route has."""

_OUTER_HEADERS = ("x-request-id", "server-timing")
"""Headers that `RequestMiddleware` gives every answer."""

_NEED_NO_EXPOSING = ("access-control-allow-origin", "content-length", "content-type", "vary")

_OPTIONS: dict[str, Any] = {
    "title": "headroom",
    "version": API_VERSION,
    "docs_url": None,
    "redoc_url": None,
    "redirect_slashes": False,
    "strict_content_type": False,
    "generate_unique_id_function": lambda route: route.name,
    "telemetry": {"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
}
"""What FastAPI is told of the application and of its routes."""


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        return complete(super().openapi(), self.state.settings)


def create_app(settings: Settings, metrics: Metrics, traces: Traces | None = None) -> FastAPI:
    """Return the service's HTTP side, without a model. traces: what takes a span of each request.

    Set `app.state.backend` to a `Replica` when it is up; until then requests get 503 with Retry-After.
    `app.state.keys` are the API keys. The app has no lifespan of its own.
    Raises InvalidConfig if the file of the keys is wrong.
    """
    app = _App(**_OPTIONS)
    app.state.settings = settings
    app.state.metrics = metrics
    app.state.keys = key_ring(settings)
    app.state.held = HeldBytes(settings.max_held_bytes)
    app.state.backend = None
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.router.routes.extend(_routes())
    # The last one is the outermost.
    app.add_middleware(Gate, settings=settings, keys=app.state.keys, posts=post_routes(app), metrics=metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORS,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    app.add_middleware(RequestMiddleware, settings=settings, metrics=metrics, traces=traces)
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Return the routes. All applications of a process share them, since FastAPI takes long to read them."""
    app = FastAPI(openapi_url=None, **_OPTIONS)
    add_routes(app)
    add_compat_routes(app)
    add_pages(app)
    return tuple(app.routes)


async def _http_error(request: Request, error: Exception) -> Response:
    """The routing's own errors: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    if (refusal := request.scope["state"].get(REFUSAL)) is not None:
        raise refusal
    if error.status_code == NotFound.status:
        raise NotFound
    if error.status_code != MethodNotAllowed.status:
        raise error
    response = error_response(MethodNotAllowed(), request.scope)
    response.headers["allow"] = ", ".join(_methods(request))
    return response


def _methods(request: Request) -> list[str]:
    """Return the methods of the route that a request's path is matched to, and of others of that path."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    path = next(route.path for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in routes if route.path == path for method in route.methods or ()}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    without_path_or_query = [{**each, "loc": each["loc"][1:]} for each in error.errors()]
    raise to_invalid_request(without_path_or_query)


class RequestMiddleware:
    """The outermost layer: gives each request its id, and times, counts, logs and traces its answer.

    HEAD is answered as GET without the body.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: Metrics, traces: Traces | None) -> None:
        self.app = app
        self.metrics = metrics
        self.traces = traces
        self.access_log = AccessLog(settings.access_log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        arrived = time.monotonic()
        record = self.access_log.start(scope, _request_id(scope))
        path = _tidied(scope)
        is_traced = self.traces is not None and path not in PROBES
        end_span = self.traces.start(scope, record) if self.traces is not None and is_traced else None
        is_head = scope["method"] == "HEAD"
        scope = {**scope, "path": path}
        if is_head:
            scope["method"] = "GET"
        scope.setdefault("state", {})["arrived"] = arrived - seconds_at_proxy(scope["headers"])

        async def send_with_headers(message: Message) -> None:
            """Send a part of the answer, with the request's id and timing in its head."""
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = record.request_id
                headers[MARK] = "1"
                if record.is_from_playground and scope["app"].state.backend is not None:
                    headers[FACTS_HEADER] = facts_version(scope["app"].state.backend)
                if "server-timing" not in headers:
                    headers["server-timing"] = f"total;dur={(time.monotonic() - arrived) * 1000:.3f}"
            elif message["type"] == "http.response.body" and is_head:
                message = {**message, "body": b""}
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            # The proxy in front gave up on this request, as it does when its client hangs up.
            if not record.status:
                record.status = ClientDisconnected.status
                _count_shed("disconnect", record, self.metrics)
            raise
        finally:
            status = record.status or InternalError.status
            seconds = time.monotonic() - arrived
            route = _route(scope)
            self.metrics.request(route, status, seconds, is_from_playground=record.is_from_playground)
            self.access_log.finish(record, status=status, seconds=seconds)
            if end_span is not None:
                end_span(None if route == UNMATCHED else route, status)


def _request_id(scope: Scope) -> str:
    """Return the caller's id of a request, if it is safe to repeat, else a new one."""
    given = (value for name, value in scope["headers"] if name == b"x-request-id")
    request_id = next((str(value, "ascii") for value in given if SAFE_REQUEST_ID.fullmatch(value)), None)
    return request_id or uuid.uuid4().hex


def _tidied(scope: Scope) -> str:
    """Return the path as the routes have it: `/v1/rerank` for `//v1/rerank/`.

    Base URLs that end in a slash give such paths. `/docs/` stays: the page's links are relative to `/docs`.
    """
    path = str(scope["path"])
    if "//" not in path and not path.endswith("/"):
        return path
    tidied = "/" + "/".join(part for part in path.split("/") if part)
    return f"{tidied}/" if tidied in (scope.get("root_path"), DOCS_PATH) else tidied


class CORS(CORSMiddleware):
    """The layer that lets the pages of the allowed origins read answers, with all of their headers."""

    async def send(self, message: Message, send: Send, request_headers: Headers) -> None:
        """Send a part of an answer; its head says that the page may read all headers."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            names = dict.fromkeys((*headers.keys(), *_OUTER_HEADERS))
            exposed = [name for name in names if name not in _NEED_NO_EXPOSING]
            headers["access-control-expose-headers"] = ", ".join(exposed)
        await super().send(message, send, request_headers)

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the answer to the question of a browser whether a page may call the service."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        body = to_response(Forbidden("Pages of this origin may not call the service like this.")).body
        return json_response(body, status=response.status_code, headers={"vary": "Origin"})


class Gate:
    """The layer around the routes: checks the caller, and answers errors.

    Exceptions of any kind become the error shape; those that are not the caller's fault are logged with the
    request id.

    posts: the POST routes by their path. Such a request goes straight to its route, past the router, which
    would try one pattern after the other, and three layers that such a route does not use. A path with
    parameters, and whatever else is unusual, goes the usual way.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Settings,
        keys: KeyRing | None,
        posts: Mapping[str, PostRoute],
        metrics: Metrics,
    ) -> None:
        self.app = app
        self.origins = settings.cors_origins
        self.keys = keys
        self.posts = posts
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_post = scope["method"] == "POST" and not scope.get("root_path")
        post = self.posts.get(scope["path"]) if is_post else None
        if post is not None:
            scope.update(route=post, endpoint=post.endpoint, path_params={})
        record = current()
        try:
            try:
                check_caller(scope, self.keys, self.origins)
            except RateLimited as error:
                if scope["method"] != "POST":
                    raise
                scope["state"][REFUSAL] = error  # only its body says whether the titles go out all the same
            await (self.app if post is None else post.handle)(scope, receive, send)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            if record.status:
                raise  # half an answer is out; the server has to cut the connection
            await self._refuse(error, record, scope, receive, send)

    async def _refuse(
        self, error: BaseException, record: Record, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Count an error and answer it."""
        known = as_service_error(error)
        record.error = known.type
        if known.shed is not None:
            _count_shed(known.shed, record, self.metrics)
        if known.status == InternalError.status:
            logger.error("request %s failed", record.request_id, exc_info=error)
        response = error_response(error, scope)
        if known.status == Unauthorized.status and scope["path"] == DOCS_PATH:
            response = docs_asking_for_key(response, Headers(scope=scope))
        if known.unread:
            await send_and_drain(response, scope, receive, send)
        else:
            await response(scope, receive, send)


def _count_shed(reason: ShedReason, record: Record, metrics: Metrics) -> None:
    metrics.count("shed_total", reason)
    record.shed = reason


def _route(scope: Scope) -> str:
    """Return the path's template; a caller's own words never become a label."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        app = scope.get("app")
        templates = {getattr(route, "path", None) for route in app.routes} if app is not None else set()
        path = scope["path"] if scope["path"] in templates else UNMATCHED
    return str(path)
