"""The routes of /v1, health and metrics."""

import asyncio
import dataclasses
from typing import Annotated, Any

from fastapi import Body, FastAPI, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BeforeValidator

from headroom.service.api.clients.vllm import VllmScores
from headroom.service.api.errors import json_response
from headroom.service.api.openapi import GET_ERRORS, POST_ERRORS, errors
from headroom.service.api.post import Endpoint, Post, PostRoute, backend_of, check_ready, validated
from headroom.service.api.ranking import score
from headroom.service.errors import Forbidden, Unavailable
from headroom.service.experiments import report_page
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.experiments.events import OutcomeReceipt
from headroom.service.experiments.export import MAX_ROW, Page, Source
from headroom.service.experiments.log import EntryKind
from headroom.service.experiments.report import ExperimentDetail, ExperimentsView
from headroom.service.observe.metrics import CONTENT_TYPE, Metrics
from headroom.service.schemas.condense import CondenseRequest, CondenseResponse, GenerateResponse
from headroom.service.schemas.experiments import (
    OutcomesRequest,
    RampRequest,
    RollbackRequest,
    ShipRequest,
    StartRequest,
    StopRequest,
    UbiRequest,
)
from headroom.service.schemas.listings import (
    HeadsResponse,
    Live,
    MasksResponse,
    ModelsResponse,
    Ready,
    VariantsResponse,
)
from headroom.service.schemas.requests import AttentionRequest, CompareRequest
from headroom.service.schemas.responses import AttentionResponse, CompareResponse, ScoreResponse

_Name = Annotated[str, Path(max_length=64, examples=["prune20"], description="The experiment's name.")]


async def compare(request: Post, body: Annotated[CompareRequest, Body()]) -> CompareResponse:
    """Score the same pairs under several masks and variants, in the same batches."""
    body.check(request.settings)
    return await request.backend.compare(body, request.deadline)


async def attention(request: Post, body: Annotated[AttentionRequest, Body()]) -> AttentionResponse:
    """Show where the tokens of one pair look, head by head."""
    body.check(request.settings)
    return await request.backend.attention(body, request.deadline)


async def condense(
    request: Post, body: Annotated[CondenseRequest, Body()]
) -> CondenseResponse | GenerateResponse:
    """Shorten a verbose query to the words that still find the same titles, or write the short query."""
    body.check(request.settings)
    return await request.backend.condense(body, request.deadline)


async def outcomes(request: Post, body: Annotated[OutcomesRequest, Body()]) -> OutcomeReceipt:
    """Report what exposed units did. Answered when stored; on 503 send it again, nothing counts twice."""
    with request.backend.experiments() as known:
        return await known.record(lambda: [item.event() for item in body.outcomes])


async def ubi_events(request: Post, body: Annotated[UbiRequest, Body()]) -> OutcomeReceipt:
    """Report clicks on interleaved lists as User Behavior Insights 1.3 writes them. An array will do, too."""
    with request.backend.experiments() as known:
        return await known.record(lambda: [item.event() for item in body.events])


async def start(request: Post, body: Annotated[StartRequest, Body()]) -> ExperimentDetail:
    """Start an experiment on all replicas, without the config. It lasts over restarts. Admin."""
    actor = request.admin()
    config = await asyncio.to_thread(validated, ExperimentConfig, body.root)
    with request.backend.experiments() as known:
        return await known.start(config, actor=actor)


async def ramp(request: Post, name: _Name, body: Annotated[RampRequest, Body()]) -> ExperimentDetail:
    """Change the share of each arm's units that take part. Admin."""
    return await _act(request, name, "ramp", body)


async def stop(request: Post, name: _Name, body: Annotated[StopRequest, Body()]) -> ExperimentDetail:
    """End the experiment: everybody gets the default. Takes back a `ship`, too. Admin."""
    return await _act(request, name, "stop", body)


async def ship(request: Post, name: _Name, body: Annotated[ShipRequest, Body()]) -> ExperimentDetail:
    """End the experiment: everybody gets this arm's variant. Admin."""
    return await _act(request, name, "ship", body)


async def rollback(request: Post, name: _Name, body: Annotated[RollbackRequest, Body()]) -> ExperimentDetail:
    """Take a `ship` back: everybody gets the default again. Admin."""
    return await _act(request, name, "rollback", body)


async def _act(
    request: Post, name: str, kind: EntryKind, body: RampRequest | StopRequest | ShipRequest | RollbackRequest
) -> ExperimentDetail:
    actor = request.admin()
    with request.backend.experiments() as known:
        return await known.act(name, kind, actor=actor, **body.model_dump())


def _listing(request: Request, name: str) -> Response:
    backend = backend_of(request)
    return _under_config(getattr(backend, name)(), backend.config_version)


def _under_config(content: object, version: str) -> Response:
    """Answer with the version of the live config."""
    return json_response(content, headers={"x-config-version": version})


async def models(request: Request) -> Response:
    """The checkpoints that are loaded."""
    return _listing(request, "models")


async def variants(request: Request) -> Response:
    """The variants that requests can name."""
    return _listing(request, "variants")


async def masks(request: Request) -> Response:
    """The stored masks that specs can name as `@name`."""
    return _listing(request, "masks")


async def heads(request: Request) -> Response:
    """The head study of the service's own checkpoint: what it found out about each head."""
    return _listing(request, "heads")


async def experiments(request: Request) -> Response:
    """The experiments of the config, and those started without it, as the answering replica knows them."""
    backend = backend_of(request)
    with backend.experiments() as known:
        return _under_config(known.listing(), backend.config_version)


async def experiment(request: Request, name: _Name) -> Response:
    """One experiment: state, log, and the analysis so far (null while the database is down)."""
    backend = backend_of(request)
    with backend.experiments() as known:
        return _under_config(await known.show(name), backend.config_version)


async def report_html(request: Request, name: _Name) -> Response:
    """One experiment's report to share: one HTML file that needs no other."""
    with backend_of(request).experiments() as known:
        detail = await known.show(name)
    if detail.report is None:
        raise Unavailable
    page = await asyncio.to_thread(report_page.html, dataclasses.asdict(detail))
    return HTMLResponse(page, headers={"content-disposition": "attachment"})


async def rows(
    request: Request,
    name: _Name,
    source: Annotated[Source, Query(description="What the rows are.")] = "exposures",
    after: Annotated[
        int,
        BeforeValidator(lambda text: text or 0),
        Query(ge=0, le=MAX_ROW, description="`next` of the page before; empty begins."),
    ] = 0,
) -> Response:
    """A page of one experiment's rows, for a warehouse. Admin, if the service has keys."""
    key = request.scope["state"].get("key")
    if key is not None and key.role != "admin":
        raise Forbidden
    with backend_of(request).experiments() as known:
        content = await known.rows(name, source, str(after))
    return Response(content, media_type="application/json")


async def live() -> Response:
    """The process runs."""
    return json_response(Live())


async def ready(request: Request) -> Response:
    """Requests are welcome: the model is warm, the device works, and the replica is not draining."""
    check_ready(request)
    return json_response(Ready(backend_of(request).problem))


async def metrics(request: Request) -> Response:
    """All replicas of this node, in the Prometheus text format."""
    collected: Metrics = request.app.state.metrics
    return Response(await collected.scrape(), media_type=CONTENT_TYPE)


def add_routes(app: FastAPI) -> None:
    """Add everything to an app whose `state` has `settings`, `metrics` and `backend`."""
    by_name = GET_ERRORS | errors(404, 422)
    for route in (
        _post("/v1/score", score, ScoreResponse | VllmScores),
        _post("/v1/compare", compare, CompareResponse),
        _post("/v1/attention", attention, AttentionResponse),
        _post("/v1/condense", condense, CondenseResponse | GenerateResponse),
        _post("/v1/outcomes", outcomes, OutcomeReceipt, tag="experiments"),
        _post("/v1/ubi/events", ubi_events, OutcomeReceipt, tag="experiments"),
        _act_on_experiment("ramp", ramp),
        _act_on_experiment("stop", stop),
        _act_on_experiment("ship", ship),
        _act_on_experiment("rollback", rollback),
        _post(
            "/v1/experiments",
            start,
            ExperimentDetail,
            tag="experiments",
            statuses=POST_ERRORS | errors(403, 409),
        )
        | {"status_code": 201},
        _get("/v1/experiments", experiments, ExperimentsView, tag="experiments"),
        _get("/v1/experiments/{name}", experiment, ExperimentDetail, tag="experiments", statuses=by_name),
        _get("/v1/experiments/{name}/rows", rows, Page, tag="experiments", statuses=by_name),
        _get("/v1/models", models, ModelsResponse),
        _get("/v1/variants", variants, VariantsResponse),
        _get("/v1/masks", masks, MasksResponse),
        _get("/v1/heads", heads, HeadsResponse),
        _get("/health/live", live, Live, tag="operations", statuses=errors(500)),
        _get("/health/ready", ready, Ready, tag="operations", statuses=errors(500, 503)),
    ):
        app.router.add_api_route(**route)
    app.add_api_route(
        "/v1/experiments/{name}/report.html",
        report_html,
        response_class=HTMLResponse,
        responses=by_name,
        tags=["experiments"],
    )
    app.add_api_route(
        "/metrics",
        metrics,
        response_class=PlainTextResponse,
        responses=errors(401, 403, 429, 500),
        tags=["operations"],
    )


def _get(
    path: str, endpoint: Endpoint, answer: Any, *, tag: str = "what is loaded", statuses: Any = GET_ERRORS
) -> dict[str, Any]:
    """Return a GET route as FastAPI adds it. answer: the type of its answers. statuses: of its errors."""
    return {
        "path": path,
        "endpoint": endpoint,
        "response_model": answer,
        "responses": statuses,
        "tags": [tag],
    }


def _post(
    path: str, endpoint: Endpoint, answer: Any, *, tag: str = "scoring", statuses: Any = POST_ERRORS
) -> dict[str, Any]:
    """Return a POST route as FastAPI adds it."""
    route = _get(path, endpoint, answer, tag=tag, statuses=statuses)
    return route | {"methods": ["POST"], "route_class_override": PostRoute}


def _act_on_experiment(verb: str, endpoint: Endpoint) -> dict[str, Any]:
    path = f"/v1/experiments/{{name}}/{verb}"
    return _post(
        path, endpoint, ExperimentDetail, tag="experiments", statuses=POST_ERRORS | errors(403, 404, 409)
    )
