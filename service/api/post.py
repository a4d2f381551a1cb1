"""The one kind of POST route: read the body, check it, wait for the answer, send it.

FastAPI documents these routes from their endpoints, and its machinery between route and endpoint is skipped:
three exit stacks, an e-mail parser for the content type and the dependencies are code and data that every
request would pull through the processor's caches again (docs/decisions/009-the-way-of-a-request.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from models.errors import InvalidMask
from service.api import strict_json
from service.api.backend import Backend
from service.api.body import check_content_type, read
from service.api.errors import ErrorShape, explain, json_response, use
from service.api.openapi import POST_ERRORS, errors
from service.api.waiting import answer
from service.config.keys import ApiKey, KeyRing
from service.config.settings import Settings
from service.engine.request import Deadline
from service.errors import Forbidden, InvalidRequest, NotReady, QueueFull, Starting, Unavailable
from service.observe.record import current
from service.schemas.responses import Timing, to_json

Model = TypeVar("Model", bound=BaseModel)
Endpoint = Callable[..., Coroutine[Any, Any, Any]]

BYTES_PER_PAIR = 4_096
"""A request counts at least one pair for so many bytes of its body, as long texts cost more to read."""


class Post(Request):
    """A POST whose body was read and checked, as its endpoint sees it.

    backend: the replica. content: the body. key: the caller's; None if the service has no keys.
    """

    settings: Settings
    backend: Backend
    deadline: Deadline
    content: bytes
    key: ApiKey | None = None

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

    @contextmanager
    def charged(self, pairs: int) -> Iterator[Callable[[int], None]]:
        """Count pairs against the rate of the request's key while they are scored. Raises RateLimited.

        A large body counts more pairs: one for every `BYTES_PER_PAIR`.
        They are given back if the replica refuses the request, as wrong or for want of room. An endpoint that
        may score more pairs than announced reports all that it scores to the function that this yields:
        those count however the request ends, and the key may owe them.
        """
        pairs = max(pairs, -(-len(self.content) // BYTES_PER_PAIR))
        pairs_scored = 0

        def count_pairs(more: int) -> None:
            nonlocal pairs_scored
            pairs_scored += more

        if self.key is None:
            yield count_pairs
            return
        keys: KeyRing = self.app.state.keys
        keys.spend_pairs(self.key, pairs)
        least = pairs
        try:
            yield count_pairs
        except (InvalidRequest, InvalidMask, QueueFull, Unavailable):
            least = 0
            raise
        finally:
            if correction := pairs - max(pairs_scored, least):
                keys.correct_pairs(self.key, correction)


class Timed(NamedTuple):
    """An answer of a scoring route in another shape than ours.

    content: what goes out as JSON; bytes go out as they are. headers: besides those of every scoring route.
    """

    content: Any
    timing: Timing
    headers: Mapping[str, str] = {}


class RequestShape(NamedTuple):
    """A kind of body that a route takes. write_error: the shape of its errors; None: the path's."""

    model: type[BaseModel]
    endpoint: Endpoint
    write_error: ErrorShape | None = None


class PostRoute(APIRoute):
    """A route for an endpoint `async (request: Post, body, **path parameters) -> answer`.

    body: one pydantic model. answer: what goes out as JSON, or Timed. FastAPI's dependencies do not work
    here. Errors leave as exceptions, for `RequestMiddleware`.

    shapes: the kinds of bodies by the field that tells them from the others; the first one that is there
    counts. default: the kind without any of the fields.
    """

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        assert self.body_field is not None
        self.default = RequestShape(self.body_field.field_info.annotation, endpoint)  # type: ignore[arg-type]
        self.shapes: dict[str, RequestShape] = {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ServiceError; HTTPException for another method."""
        if self.methods and scope["method"] not in self.methods:
            await super().handle(scope, receive, send)
            return
        request = Post(scope, receive)
        state = request.app.state
        settings = request.settings = state.settings
        request.key = scope["state"].get("key")
        value = await self.read_body(request, receive)
        shape = self.default
        if self.shapes and isinstance(value, dict):
            shape = next((self.shapes[field] for field in self.shapes if field in value), shape)
        if shape.write_error is not None:
            use(scope, shape.write_error)
        body = validated(shape.model, value)
        request.deadline = _deadline(scope["state"]["arrived"], body, settings)
        parameters = self._parameters(request) if request.path_params else {}
        # Read now: nothing waits between this and the call in which the replica takes its config.
        request.backend = backend_of(request)
        config_version = request.backend.config_version
        value = await answer(
            shape.endpoint(request, body=body, **parameters),
            receive,
            timeout_s=request.deadline.remaining(),
        )
        response = _response(value, request, config_version)
        await response(scope, receive, send)

    async def read_body(self, request: Post, receive: Receive) -> Any:
        """Return the JSON value of the body, and set `content`. Raises ServiceError."""
        check_content_type(request.headers)
        request.content = await read(receive, request.headers, request.settings)
        return strict_json.loads(request.content, max_parts=request.settings.max_json_parts)

    def _parameters(self, request: Request) -> dict[str, Any]:
        """Return the path's parameters, checked as FastAPI documents them."""
        values = {}
        for field in self.dependant.path_params:
            value, errors = field.validate(request.path_params[field.alias], loc=(field.alias,))
            if errors:
                raise explain(errors)
            values[field.name] = value
        return values


class PostMiddleware:
    """Hands a POST request to its route, past the router and three layers that such a route does not use.

    The router would try one pattern after the other. A path with parameters, and whatever else is unusual,
    goes the usual way.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._routes: dict[str, PostRoute] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None
        if scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path"):
            if self._routes is None:
                self._routes = post_routes(scope["app"])
            route = self._routes.get(scope["path"])
        if route is None:
            await self.app(scope, receive, send)
        else:
            scope.update(route=route, endpoint=route.endpoint, path_params={})
            await route.handle(scope, receive, send)


def post_routes(app: FastAPI) -> dict[str, PostRoute]:
    """Return the POST routes whose path has no parameter, by their path."""
    routes = (route for route in app.routes if isinstance(route, PostRoute))
    return {route.path: route for route in routes if not route.param_convertors}


def validated(model: type[Model], value: Any) -> Model:
    """Return the value as this model. Raises InvalidRequest, which names the first field that is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise explain(error.errors(include_url=False, include_context=False)) from None


def add_post_route(
    app: FastAPI,
    path: str,
    endpoint: Endpoint,
    response_model: Any,
    tags: list[str | Enum],
    *,
    more_errors: Sequence[int] = (),
) -> None:
    """Add a route of this kind, documented with the errors of all of them and `more_errors`, as statuses."""
    app.router.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        response_model=response_model,
        responses=POST_ERRORS | errors(*more_errors),
        tags=tags,
        route_class_override=PostRoute,
    )


def backend_of(request: Request) -> Backend:
    """Return the replica. Raises Starting while there is none."""
    backend: Backend | None = request.app.state.backend
    if backend is None:
        raise Starting(retry_after=2.0)
    return backend


def check_ready(request: Request) -> None:
    """Raise NotReady unless requests are welcome."""
    backend: Backend | None = request.app.state.backend
    reason = "starting" if backend is None else backend.ready()
    if reason is not None:
        raise NotReady(reason)


def _deadline(arrived: float, body: BaseModel, settings: Settings) -> Deadline:
    """Return the request's deadline: its own or else the server's timeout, from arrival.

    Raises InvalidRequest if its own is later than the server's.
    """
    timeout_s = settings.request_timeout_s
    deadline_ms: float | None = getattr(body, "deadline_ms", None)
    if deadline_ms is not None:
        if deadline_ms > timeout_s * 1000:
            limit = f"must be at most {timeout_s * 1000:.0f}, the request timeout"
            raise InvalidRequest(limit, param="deadline_ms")
        timeout_s = deadline_ms / 1000
    return Deadline(received=time.monotonic(), expires=arrived + timeout_s)


def _response(value: Any, request: Post, config_version: str) -> Response:
    """Write an answer as JSON. That of a scoring route brings its timings, for a header and the metrics.

    config_version: of the config that it was made under.
    """
    timing: Timing | None
    headers: Mapping[str, str] = {}
    if isinstance(value, Timed):
        value, timing, headers = value
    else:
        timing = getattr(value, "timing_ms", None)
    if timing is None:
        return json_response(value)
    current().responds(timing.queue, timing.inference)
    began = time.perf_counter()
    headers = {"x-config-version": config_version, "server-timing": timing.server_timing(), **headers}
    content = value if isinstance(value, bytes) else to_json(value)
    response = Response(content, 200, headers, media_type="application/json")
    request.app.state.metrics.stages(
        tokenize=timing.tokenize / 1000,
        queue=timing.queue / 1000,
        inference=timing.inference / 1000,
        respond=time.perf_counter() - began,
    )
    return response
