"""The routes of /v1, health and metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar, cast

from fastapi import Body, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from service.deadline import Deadline
from service.errors import NotReady, Starting
from service.http.backend import Backend
from service.http.direct import DirectRoute
from service.http.openapi import GET_ERRORS, POST_ERRORS, errors
from service.http.replies import json_response
from service.http.waiting import answer
from service.metrics import CONTENT_TYPE, Metrics
from service.schemas.requests import (
    AttentionRequest,
    CompareRequest,
    ScoreRequest,
    check_attention,
    check_compare,
    check_score,
)
from service.schemas.responses import (
    AttentionResponse,
    CompareResponse,
    Health,
    MasksResponse,
    ModelsResponse,
    ScoreResponse,
    VariantsResponse,
)
from service.settings import Settings

B = TypeVar("B", ScoreRequest, CompareRequest, AttentionRequest)
T = TypeVar("T", ScoreResponse, CompareResponse, AttentionResponse)


async def score(request: Request, body: Annotated[ScoreRequest, Body()]) -> Response:
    """Grade the titles of a query, under a variant and any head mask."""
    check_score(body, _settings(request))
    return await _answer(request, body, _backend(request).score)


async def compare(request: Request, body: Annotated[CompareRequest, Body()]) -> Response:
    """Score the same pairs under several masks and variants, in the same batches."""
    check_compare(body, _settings(request))
    return await _answer(request, body, _backend(request).compare)


async def attention(request: Request, body: Annotated[AttentionRequest, Body()]) -> Response:
    """Show where the tokens of one pair look, head by head."""
    check_attention(body, _settings(request))
    return await _answer(request, body, _backend(request).attention)


async def models(request: Request) -> Response:
    """The checkpoints that are loaded."""
    return _listing(request, _backend(request).models())


async def variants(request: Request) -> Response:
    """The variants that requests can name."""
    return _listing(request, _backend(request).variants())


async def masks(request: Request) -> Response:
    """The stored masks that specs can name as `@name`."""
    return _listing(request, _backend(request).masks())


async def live() -> Response:
    """The process runs."""
    return json_response(Health("live"))


async def ready(request: Request) -> Response:
    """Requests are welcome: the model is warm, the device works, and the replica is not draining."""
    backend: Backend | None = request.app.state.backend
    reason = "starting" if backend is None else backend.ready()
    if reason is not None:
        raise NotReady(reason)
    return json_response(Health("ready"))


async def metrics(request: Request) -> Response:
    """All replicas of this node, in the Prometheus text format."""
    return Response(await _metrics(request).scrape(), media_type=CONTENT_TYPE)


async def root() -> Response:
    """Where to go from here."""
    return json_response({"service": "headroom", "docs": "/docs", "openapi": "/openapi.json"})


def add_routes(app: FastAPI) -> None:
    """Add everything to an app whose `state` has `settings`, `metrics` and `backend`."""
    for path, handler, model in (
        ("/v1/score", score, ScoreResponse),
        ("/v1/compare", compare, CompareResponse),
        ("/v1/attention", attention, AttentionResponse),
    ):
        app.router.add_api_route(
            path,
            handler,
            methods=["POST"],
            response_model=model,
            responses=POST_ERRORS,
            tags=["scoring"],
            route_class_override=DirectRoute,
        )
    for path, listing, shape in (
        ("/v1/models", models, ModelsResponse),
        ("/v1/variants", variants, VariantsResponse),
        ("/v1/masks", masks, MasksResponse),
    ):
        app.add_api_route(path, listing, response_model=shape, responses=GET_ERRORS, tags=["what is loaded"])
    app.add_api_route("/health/live", live, response_model=Health, responses=errors(500), tags=["operations"])
    app.add_api_route(
        "/health/ready", ready, response_model=Health, responses=errors(500, 503), tags=["operations"]
    )
    app.add_api_route(
        "/metrics",
        metrics,
        response_class=PlainTextResponse,
        responses=errors(401, 429, 500),
        tags=["operations"],
    )
    app.add_api_route("/", root, include_in_schema=False)


async def _answer(
    request: Request, body: B, work: Callable[[B, Deadline], Coroutine[Any, Any, T]]
) -> Response:
    """Wait for the replica no longer than the deadline and the request timeout, both from arrival."""
    timeout_s = _settings(request).request_timeout_s
    if body.deadline_ms is not None:
        timeout_s = min(timeout_s, body.deadline_ms / 1000)
    deadline = Deadline(time.monotonic(), request.state.arrived + timeout_s)
    value = await answer(work(body, deadline), request.receive, timeout_s=deadline.remaining())

    done = time.perf_counter()
    timing = value.timing_ms
    response = _listing(request, value)
    response.headers["server-timing"] = timing.server_timing()
    _metrics(request).stages(
        tokenize=timing.tokenize / 1000,
        queue=timing.queue / 1000,
        inference=timing.inference / 1000,
        respond=time.perf_counter() - done,
    )
    return response


def _listing(request: Request, value: object) -> Response:
    return json_response(value, headers={"x-config-version": _backend(request).config_version})


def _backend(request: Request) -> Backend:
    backend: Backend | None = request.app.state.backend
    if backend is None:
        raise Starting(retry_after=2.0)
    return backend


def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


def _metrics(request: Request) -> Metrics:
    return cast(Metrics, request.app.state.metrics)
