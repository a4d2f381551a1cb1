"""The two layers that every request passes on its way to a route and back.

The outer one gives it its id, and times, counts, logs and traces its answer. The inner one checks its caller,
and answers errors: nothing leaves it but answers. Holders of an API key are let in; if no keys are set,
programs on this machine.

Without API keys, a browser on this machine is the only thing between any web page and the service. A page of
another site names itself in `Origin`; one whose domain was rebound to this machine names its domain in
`Host` (https://fetch.spec.whatwg.org, section "Origin header").
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headroom.service.api import pages
from headroom.service.api.body import send_and_drain
from headroom.service.api.edge import MARK, SAFE_REQUEST_ID, seconds_at_proxy
from headroom.service.api.errors import error_response
from headroom.service.api.pages import (
    DOCS_PATH,
    FACTS_HEADER,
    PAGE_HEADER,
    docs_asking_for_key,
    facts_version,
)
from headroom.service.api.post import REFUSAL, PostRoute
from headroom.service.config.keys import Allowance, KeyRing, allowance
from headroom.service.config.settings import Settings
from headroom.service.errors import (
    ClientDisconnected,
    Forbidden,
    InternalError,
    RateLimited,
    ShedReason,
    Unauthorized,
    as_service_error,
)
from headroom.service.loopback import leads_to_loopback
from headroom.service.observe.access_log import PROBES, AccessLog, Record, current
from headroom.service.observe.metrics import Metrics

if TYPE_CHECKING:
    from headroom.service.observe.traces import Traces

logger = logging.getLogger("headroom.api")

UNMATCHED = "unmatched"
"""The route label of paths that no route has."""


OPEN_PATHS = pages.PATHS | PROBES
"""Paths whose GET needs no API key: the pages with their files, and the answers about health."""


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
        is_from_page = any(name == PAGE_HEADER for name, _ in scope["headers"])
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
                if is_from_page and scope["app"].state.backend is not None:
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
            self.metrics.request(route, status, seconds)
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


def check_caller(scope: Scope, keys: KeyRing | None, origins: Sequence[str]) -> None:
    """Admit a request with an API key that has rate left; without keys, one from this machine.

    What is open to everybody passes. keys: None if the service has none. origins: those whose pages may call
    a service without keys, besides its own. Raises Unauthorized, RateLimited or Forbidden.
    """
    allowance.set(None)
    if scope["method"] == "GET" and scope["path"] in OPEN_PATHS:
        return
    headers = Headers(scope=scope)
    if keys is not None:
        given = headers.get("authorization")
        key = keys.authenticate(None if given is None else given.encode("latin-1"))
        current().key = key.name
        scope["state"]["key"] = key
        keys.spend(key)
        allowance.set(Allowance(keys, key))
        return
    hosts = headers.getlist("host")
    if not all(leads_to_loopback(f"//{host}") for host in hosts):
        raise Forbidden(
            "Without API keys this service answers only at localhost and 127.0.0.1; to use it under "
            "another name or from another machine, set HEADROOM_API_KEYS."
        )
    for origin in headers.getlist("origin"):
        if origin not in origins and urlsplit(origin).netloc.lower() not in [host.lower() for host in hosts]:
            raise Forbidden(
                "Without API keys this service answers no web page of another site; set HEADROOM_API_KEYS, "
                "or name the site in HEADROOM_CORS_ORIGINS."
            )
