"""The routes of /v1, health and metrics."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from service.api.backend import Backend
from service.api.clients.base import CompatRequest, score_and_answer
from service.api.clients.vllm_score import VllmScores, vllm_shape
from service.api.openapi import GET_ERRORS, errors
from service.api.post import (
    Post,
    PostRoute,
    Timed,
    add_post_route,
    backend_of,
    check_ready,
    validated,
)
from service.api.replies import json_response
from service.observe.metrics import CONTENT_TYPE, Metrics
from service.schemas.condense import CondenseRequest, CondenseResponse
from service.schemas.limits import check_attention, check_compare, check_condense, check_score
from service.schemas.listings import (
    HeadsResponse,
    Health,
    MasksResponse,
    ModelsResponse,
    VariantsResponse,
)
from service.schemas.requests import (
    AttentionRequest,
    CompareRequest,
    ScoreRequest,
)
from service.schemas.responses import AttentionResponse, CompareResponse, ScoreResponse


async def score(request: Post, body: Annotated[ScoreRequest, Body()]) -> ScoreResponse | Timed:
    """Grade the titles of a query, under a variant and any head mask."""
    if isinstance(body, CompatRequest):  # vLLM's
        return await score_and_answer(request, body)
    check_score(body, request.settings)
    with request.charged(body.count):
        return await request.backend.score(body, request.deadline)


class ScoreRoute(PostRoute):
    """The route of /v1/score, which also takes vLLM's requests: they have none of our fields."""

    def _checked(self, value: Any, request: Post) -> BaseModel:
        shape = vllm_shape(value)
        return super()._checked(value, request) if shape is None else validated(shape, value)


async def compare(request: Post, body: Annotated[CompareRequest, Body()]) -> CompareResponse:
    """Score the same pairs under several masks and variants, in the same batches."""
    check_compare(body, request.settings)
    with request.charged(body.count * (len(body.masks) + len(body.variants))):
        return await request.backend.compare(body, request.deadline)


async def attention(request: Post, body: Annotated[AttentionRequest, Body()]) -> AttentionResponse:
    """Show where the tokens of one pair look, head by head."""
    check_attention(body, request.settings)
    with request.charged(1):
        return await request.backend.attention(body, request.deadline)


async def condense(request: Post, body: Annotated[CondenseRequest, Body()]) -> CondenseResponse:
    """Shorten a verbose query to the words that still find the same titles."""
    check_condense(body, request.settings)
    with request.charged(len(body.titles)) as count_pairs:  # how many it takes is known only afterwards
        return await request.backend.condense(body, request.deadline, count_pairs)


async def models(request: Request) -> Response:
    """The checkpoints that are loaded."""
    backend = backend_of(request)
    return _listing(backend, backend.models())


async def variants(request: Request) -> Response:
    """The variants that requests can name."""
    backend = backend_of(request)
    return _listing(backend, backend.variants())


async def masks(request: Request) -> Response:
    """The stored masks that specs can name as `@name`."""
    backend = backend_of(request)
    return _listing(backend, backend.masks())


async def heads(request: Request) -> Response:
    """The head study of the service's own checkpoint: what it found out about each head."""
    backend = backend_of(request)
    return _listing(backend, backend.heads())


async def live() -> Response:
    """The process runs."""
    return json_response(Health("live"))


async def ready(request: Request) -> Response:
    """Requests are welcome: the model is warm, the device works, and the replica is not draining."""
    check_ready(request)
    return json_response(Health("ready"))


async def metrics(request: Request) -> Response:
    """All replicas of this node, in the Prometheus text format."""
    collected: Metrics = request.app.state.metrics
    return Response(await collected.scrape(), media_type=CONTENT_TYPE)


def add_routes(app: FastAPI) -> None:
    """Add everything to an app whose `state` has `settings`, `metrics` and `backend`."""
    for path, endpoint, response_model, route_class in (
        ("/v1/score", score, ScoreResponse | VllmScores, ScoreRoute),
        ("/v1/compare", compare, CompareResponse, PostRoute),
        ("/v1/attention", attention, AttentionResponse, PostRoute),
        ("/v1/condense", condense, CondenseResponse, PostRoute),
    ):
        add_post_route(app, path, endpoint, response_model, ["scoring"], route_class=route_class)
    for path, listing, shape in (
        ("/v1/models", models, ModelsResponse),
        ("/v1/variants", variants, VariantsResponse),
        ("/v1/masks", masks, MasksResponse),
        ("/v1/heads", heads, HeadsResponse),
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
        responses=errors(401, 403, 429, 500),
        tags=["operations"],
    )


def _listing(backend: Backend, value: object) -> Response:
    return json_response(value, headers={"x-config-version": backend.config_version})
