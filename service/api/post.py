"""The one kind of POST route: read the body, check it, wait for the answer, send it.

FastAPI documents these routes from their endpoints, and its machinery between route and endpoint is skipped:
three exit stacks, an e-mail parser for the content type and the dependencies are code and data that every
request would pull through the processor's caches again (docs/decisions/009-the-way-of-a-request.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from headroom.service.api.body import parse, read
from headroom.service.api.errors import ErrorShape, json_response, to_invalid_request, use_shape
from headroom.service.config.keys import ApiKey
from headroom.service.config.settings import Settings
from headroom.service.engine.request import Deadline
from headroom.service.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    NotReady,
    ServiceError,
    Starting,
)
from headroom.service.observe.access_log import current
from headroom.service.schemas.responses import Timing

if TYPE_CHECKING:
    from headroom.service.replica import Replica
    from headroom.service.scoring.catalog import Catalog

REFUSAL = "refusal"
"""Key of a request's state: the error of a caller whose rate is used up. The route raises it, or answers with
the titles in their order."""

ORIGINAL_ORDER = b"original_order"
"""What the body of a request holds that asks for its titles' order in place of an error."""

LAST_S = 5.0
"""Seconds after its deadline at which a request that keeps the order is cancelled. It answers at the
deadline, which takes some time."""

Model = TypeVar("Model", bound=BaseModel)
Endpoint = Callable[..., Coroutine[Any, Any, Any]]
T = TypeVar("T")


class Post(Request):
    """A POST whose body was read and checked, as its endpoint sees it.

    replica: None while there is none. catalog: its config in force; None without a replica.
    key: the caller's; None if the service has no keys.
    keeps_order: whether a failure is answered with the titles in the caller's order (`ranking`).
    refusal: why the request is not to be scored, although it keeps the order; None if it is.
    is_untimed: whether the answer stands in for an error, so that its stages took no time that is known.
    """

    settings: Settings
    deadline: Deadline
    replica: Replica | None = None
    catalog: Catalog | None = None
    key: ApiKey | None = None
    keeps_order: bool = False
    refusal: ServiceError | None = None
    is_untimed: bool = False

    @property
    def backend(self) -> Replica:
        """Return the replica. Raises Starting while there is none."""
        if self.replica is None:
            raise Starting
        return self.replica

    def admin(self) -> str:
        """Return the name of the admin whose API key this is. Raises Forbidden.

        Without keys nobody is an admin: behind the proxy all callers look alike.
        """
        if self.key is None:
            raise Forbidden(
                "This needs an API key with the admin role, and no keys are set: see HEADROOM_API_KEYS."
            )
        if self.key.role != "admin":
            raise Forbidden
        return f"key {self.key.name}"


class Timed(NamedTuple):
    """An answer of a scoring route in another shape than ours.

    content: what goes out as JSON; bytes go out as they are. headers: besides those of every scoring route.
    """

    content: Any
    timing: Timing
    headers: Mapping[str, str] = {}


class RequestShape(NamedTuple):
    """A kind of body that a route takes. errors: the shape of its errors; None: the path's."""

    model: type[BaseModel]
    endpoint: Endpoint
    errors: ErrorShape | None = None


class PostRoute(APIRoute):
    """A route for an endpoint `async (request: Post, body, **path parameters) -> answer`.

    body: one pydantic model. answer: what goes out as JSON, or Timed. FastAPI's dependencies do not work
    here. Errors leave as exceptions, for `RequestMiddleware`.

    shapes: the kinds of bodies by the field that tells them from the others; the first one that is there
    counts. default: the kind without any of the fields. untyped: the kind, without any of the fields, of a
    body without a Content-Type that no browser sent; None: refused.
    """

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        assert self.body_field is not None
        self.default = RequestShape(self.body_field.field_info.annotation, endpoint)  # type: ignore[arg-type]
        self.untyped: RequestShape | None = None
        self.shapes: dict[str, RequestShape] = {}

    @property
    def may_keep_order(self) -> bool:
        """Whether a failure of some of these requests is answered in the caller's order."""
        models = [shape.model for shape in (self.default, *self.shapes.values())]
        return any(hasattr(model, "keeps_order") for model in models)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ServiceError; HTTPException for another method."""
        if self.methods and scope["method"] not in self.methods:
            await super().handle(scope, receive, send)
            return
        request = Post(scope, receive)
        request.settings = request.app.state.settings
        request.key = scope["state"].get("key")
        request.refusal = scope["state"].get(REFUSAL)
        if request.refusal is not None and not self.may_keep_order:
            raise request.refusal
        with request.app.state.held.of_request() as hold:
            # The answer's parts are not kept while a slow client reads: attention maps take 20 MB.
            response = _response(await self._answer(request, receive, hold), request, self.status_code or 200)
        await response(scope, receive, send)

    async def _answer(self, request: Post, receive: Receive, hold: Callable[[int], None]) -> Any:
        """Return what the endpoint answers."""
        scope = request.scope
        settings = request.settings
        content = await self.read_body(request, receive, hold)
        if request.refusal is not None and not _may_want_order(content, request.app.state.backend):
            raise request.refusal
        value = parse(content, max_parts=settings.max_json_parts)
        shape = self._shape_of(value, is_typed=bool(request.headers.get("content-type")))
        if shape.errors is not None:
            use_shape(scope, shape.errors)
        body = validated(shape.model, value)
        timeout_s = _timeout_of(body, settings.request_timeout_s)
        request.deadline = Deadline(time.monotonic(), scope["state"]["arrived"] + timeout_s)
        # Read now: nothing waits between this and the call in which the replica takes its config.
        replica = request.replica = request.app.state.backend
        catalog = request.catalog = None if replica is None else replica.catalog
        keeps_order = getattr(body, "keeps_order", None)
        if keeps_order is not None:
            request.keeps_order = keeps_order("error" if catalog is None else catalog.config.on_failure)
        patience_s = request.deadline.remaining()
        if request.keeps_order:
            patience_s += LAST_S
        elif request.refusal is not None:
            raise request.refusal
        elif replica is None:
            raise Starting
        if catalog is not None:
            current().config_version = catalog.config.version
        work = shape.endpoint(request, body=body, **request.path_params)
        return await answer(work, receive, timeout_s=patience_s)

    def _shape_of(self, value: Any, *, is_typed: bool) -> RequestShape:
        """Return the kind of a body. is_typed: whether it came with a Content-Type."""
        if self.shapes and isinstance(value, dict):
            for field, shape in self.shapes.items():
                if field in value:
                    return shape
        return self.default if is_typed or self.untyped is None else self.untyped

    async def read_body(self, request: Post, receive: Receive, hold: Callable[[int], None]) -> bytes:
        """Return the body. Raises ServiceError.

        hold: called with the size of each part that has come; raises QueueFull if there is no room for it.
        """
        takes_untyped = self.untyped is not None and not _is_from_browser(request.headers)
        types = ("",) if takes_untyped else ()
        return await read(receive, request.headers, request.settings, hold, other_types=types)


def _timeout_of(body: BaseModel, limit_s: float) -> float:
    """Return the seconds from a request's arrival to its deadline. limit_s: the server's own timeout.

    Raises InvalidRequest if the request asks for more.
    """
    deadline_ms: float | None = getattr(body, "deadline_ms", None)
    if deadline_ms is None:
        return limit_s
    limit_ms = limit_s * 1000
    if deadline_ms > limit_ms:
        field, limit = getattr(body, "deadline_limit", deadline_limit)(limit_ms)
        raise InvalidRequest(f"must be at most {limit}, the request timeout", param=field)
    return deadline_ms / 1000


def _may_want_order(content: bytes, replica: Replica | None) -> bool:
    """Return whether a refused request may get its titles back in their order. Only if so it is parsed."""
    return ORIGINAL_ORDER in content or (replica is not None and replica.catalog.config.on_failure != "error")


def _is_from_browser(headers: Headers) -> bool:
    """Return whether a browser sent a POST: it names the page in Origin, or how the page relates to us.

    https://fetch.spec.whatwg.org, "Origin header"; https://www.w3.org/TR/fetch-metadata.
    """
    return "origin" in headers or "sec-fetch-site" in headers


def deadline_limit(limit_ms: float) -> tuple[str, str]:
    """Return the field that a request's own timeout is in, and the largest value in the field's unit."""
    return "deadline_ms", f"{limit_ms:.0f}"


async def answer(work: Coroutine[Any, Any, T], receive: Receive, *, timeout_s: float) -> T:
    """Return the result of `work`; cancel it if its client hangs up or its time runs out.

    The scheduler drops late work before it begins; this also ends the wait for a running batch or for tokens.

    Args:
        work: runs in the caller's task. If it is cancelled, it removes from the queue what it has put there.
        receive: the request's own channel, its body read to the end.

    Raises:
        ClientDisconnected: the client was gone first.
        DeadlineExceeded: `timeout_s` passed first.
    """
    waiting = asyncio.current_task()
    assert waiting is not None
    hung_up = is_over = False

    def hang_up(_: asyncio.Task[None]) -> None:
        nonlocal hung_up
        if is_over:  # the loop had this call on its list already when the wait ended
            return
        hung_up = True
        waiting.cancel()

    watch = asyncio.create_task(_disconnect(receive))
    watch.add_done_callback(hang_up)
    patience = asyncio.timeout(timeout_s)
    try:
        async with patience:
            return await work
    except TimeoutError:
        if patience.expired():
            raise DeadlineExceeded from None
        raise
    except asyncio.CancelledError:
        if hung_up and waiting.cancelling() == 1:  # nobody else wants this task to end
            raise ClientDisconnected from None
        raise
    finally:
        is_over = True
        if hung_up:
            waiting.uncancel()
        watch.remove_done_callback(hang_up)
        watch.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def post_routes(app: FastAPI) -> dict[str, PostRoute]:
    """Return the POST routes whose path has no parameter, by their path."""
    routes = (route for route in app.routes if isinstance(route, PostRoute))
    return {route.path: route for route in routes if not route.param_convertors}


def validated(model: type[Model], value: Any) -> Model:
    """Return the value as this model. Raises InvalidRequest, which names the first field that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise to_invalid_request(error.errors(include_url=False, include_context=False)) from None


def backend_of(request: Request) -> Replica:
    """Return the replica. Raises Starting while there is none."""
    backend: Replica | None = request.app.state.backend
    if backend is None:
        raise Starting
    return backend


def check_ready(request: Request) -> None:
    """Raise NotReady unless requests are welcome."""
    backend: Replica | None = request.app.state.backend
    reason = "starting" if backend is None else backend.ready()
    if reason is not None:
        raise NotReady(reason)


def _server_timing(timing: Timing) -> str:
    """Return the value of the `Server-Timing` header."""
    stages = (
        ("tokenize", timing.tokenize),
        ("queue", timing.queue),
        ("inference", timing.inference),
        ("total", timing.total),
    )
    return ", ".join(f"{name};dur={milliseconds:.3f}" for name, milliseconds in stages)


def _response(value: Any, request: Post, status: int) -> Response:
    """Write an answer as JSON. That of a scoring route brings its timings, for a header and the metrics."""
    timing: Timing | None
    headers: Mapping[str, str] = {}
    if isinstance(value, Timed):
        value, timing, headers = value
    else:
        timing = getattr(value, "timing_ms", None)
    if timing is None:
        return json_response(value, status=status)
    began = time.perf_counter()
    config_version = "" if request.catalog is None else request.catalog.config.version
    headers = {"x-config-version": config_version, "server-timing": _server_timing(timing), **headers}
    content = value if isinstance(value, bytes) else orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    response = Response(content, status, headers, media_type="application/json")
    if request.is_untimed:
        return response
    current().set_latencies(timing.queue, timing.inference)
    request.app.state.metrics.stages(
        tokenize=timing.tokenize / 1000,
        queue=timing.queue / 1000,
        inference=timing.inference / 1000,
        respond=time.perf_counter() - began,
    )
    return response
