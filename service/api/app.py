"""The ASGI application, put together of its routes and the layers around them."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match, Route

from headroom.service.api.body import HeldBytes
from headroom.service.api.clients import add_compat_routes
from headroom.service.api.errors import error_response, to_invalid_request
from headroom.service.api.layers import Gate, RequestMiddleware
from headroom.service.api.openapi import complete
from headroom.service.api.pages import add_pages
from headroom.service.api.post import REFUSAL, post_routes
from headroom.service.api.routes import add_routes
from headroom.service.config.key_file import key_ring
from headroom.service.config.settings import Settings
from headroom.service.errors import MethodNotAllowed, NotFound
from headroom.service.observe.metrics import Metrics

if TYPE_CHECKING:
    from headroom.service.observe.traces import Traces

API_VERSION = "1"

logger = logging.getLogger("headroom.api")

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
"""Options of the application, and of the one that its routes are made with."""


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
    app.state.held = HeldBytes()
    app.state.backend = None
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.router.routes.extend(_routes())
    # The last one is the outermost.
    app.add_middleware(Gate, settings=settings, keys=app.state.keys, posts=post_routes(app), metrics=metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
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
