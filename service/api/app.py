"""The ASGI application, put together."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from service.api.clients import add_compat_routes
from service.api.errors import error_response, explain
from service.api.keys import KeyMiddleware, OriginsMiddleware
from service.api.middleware import RequestMiddleware
from service.api.openapi import complete
from service.api.pages import add_pages
from service.api.post import PostMiddleware
from service.api.routes import add_routes
from service.config.keys import KeyRing
from service.config.settings import Settings
from service.errors import InvalidRequest, MethodNotAllowed, NotFound, ServiceError
from service.observe.metrics import Metrics
from service.observe.record import Telemetry

API_VERSION = "1"


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        return complete(super().openapi(), self.state.settings)


def create_app(settings: Settings, metrics: Metrics) -> FastAPI:
    """The service's HTTP side, without a model.

    Set `app.state.backend` to a `service.api.Backend` when the replica is up, and back to None when it no
    longer is; meanwhile requests get 503 with Retry-After. The app has no lifespan of its own. At the end,
    close `app.state.telemetry`; that may block for seconds.
    """
    app = _App(
        title="headroom",
        version=API_VERSION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        strict_content_type=False,
        generate_unique_id_function=lambda route: route.name,
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.state.settings = settings
    app.state.metrics = metrics
    app.state.backend = None
    app.state.keys = KeyRing(settings.api_keys)
    app.state.telemetry = Telemetry(
        settings.access_log, tracing=settings.tracing, log_queries=settings.log_queries
    )
    # The last one added is the outermost.
    app.add_middleware(PostMiddleware)
    app.add_middleware(KeyMiddleware, keys=app.state.keys or None, origins=settings.cors_origins)
    app.add_middleware(RequestMiddleware, metrics=metrics, telemetry=app.state.telemetry)
    if settings.cors_origins:
        app.add_middleware(OriginsMiddleware, origins=settings.cors_origins)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    add_routes(app)
    add_compat_routes(app)
    add_pages(app)
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """The routing's own errors: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    known: ServiceError
    if error.status_code == NotFound.status:
        known = NotFound()
    elif error.status_code == MethodNotAllowed.status:
        known = MethodNotAllowed()
    else:
        raise error
    response = error_response(known, request.scope)
    if isinstance(known, MethodNotAllowed):
        response.headers["allow"] = ", ".join(_methods(request))
    return response


def _methods(request: Request) -> list[str]:
    """Return the methods of the route that a request's path is matched to, and of others of that path."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    path = next(route.path for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in routes if route.path == path for method in route.methods or ()}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [{**each, "loc": each["loc"][1:]} for each in error.errors()]  # without "path" or "query"
    known: InvalidRequest = explain(errors)
    return error_response(known, request.scope)
