"""Other people's request and answer shapes: one file per family, `base` and `answers` for what they share."""

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Union

from fastapi import Body, FastAPI, Request, Response

from headroom.service.api.clients import ofrep, oip, tei
from headroom.service.api.clients.base import CompatRequest, score_and_answer
from headroom.service.api.clients.rerank import (
    CohereV2Request,
    InfinityRequest,
    RerankRequest,
    WeaviateRequest,
)
from headroom.service.api.clients.tei import TeiPredictRequest, TeiRerankRequest
from headroom.service.api.clients.vllm import VllmQueriesRequest, VllmTextsRequest
from headroom.service.api.clients.voyage import VoyageRequest
from headroom.service.api.openapi import errors
from headroom.service.api.post import (
    Post,
    PostRoute,
    RequestShape,
    Timed,
    check_ready,
    post_routes,
)
from headroom.service.errors import InvalidRequest

# The shapes of a path are told apart by their fields (`distinct_field`); the last one has none, or is taken
# if the request has none of the fields.
_ROUTES: tuple[tuple[str, str, tuple[type[CompatRequest], ...]], ...] = (
    ("/v1/rerank", "rerank_v1", (VoyageRequest, RerankRequest)),
    ("/v2/rerank", "rerank_v2", (CohereV2Request,)),
    ("/rerank", "rerank", (TeiRerankRequest, WeaviateRequest, InfinityRequest)),
    ("/reranking", "reranking", (RerankRequest,)),
    ("/v1/reranking", "reranking_v1", (RerankRequest,)),
    ("/predict", "tei_predict", (TeiPredictRequest,)),
    ("/", "tei_root", (TeiRerankRequest, TeiPredictRequest)),
    ("/score", "vllm_score", (VllmTextsRequest, VllmQueriesRequest)),  # /v1/score takes these, too
)


def add_compat_routes(app: FastAPI) -> None:
    """Add every route for other people's clients, and vLLM's requests to our /v1/score."""
    for path, name, shapes in _ROUTES:
        _add_route(app, path, name, shapes)
    tei.add_routes(app)
    oip.add_routes(app)
    _add_health(app)
    ofrep.add_routes(app)
    ours = post_routes(app)["/v1/score"]
    ours.shapes = {"query": ours.default, "pairs": ours.default, **post_routes(app)["/score"].shapes}


def _add_route(app: FastAPI, path: str, name: str, shapes: Sequence[type[CompatRequest]]) -> None:
    async def endpoint(request: Post, body: Any) -> Timed:
        return await score_and_answer(request, body)

    # FastAPI documents an endpoint from its annotations.
    body = Body(openapi_examples={shape.__name__: {"value": shape.example()} for shape in shapes})
    endpoint.__annotations__["body"] = Annotated[Union[tuple(shapes)], body]  # noqa: UP007
    app.router.add_api_route(
        path,
        endpoint,
        name=name,
        methods=["POST"],
        response_model=Union[tuple(answer for shape in shapes for answer in shape.answers)],  # noqa: UP007
        responses=_errors(shapes),
        tags=list[str | Enum](dict.fromkeys(server for shape in shapes for server in shape.servers)),
        description="\n\n".join(shape.__doc__ or "" for shape in shapes),
        route_class_override=PostRoute,
    )
    route = post_routes(app)[path]
    of_class = {shape: RequestShape(shape, endpoint, shape.errors) for shape in shapes}
    route.default = of_class[shapes[-1]]
    route.untyped = next((of_class[shape] for shape in shapes if shape.takes_untyped), None)
    route.shapes = {
        shape.distinct_field: of_class[shape] for shape in shapes if shape.distinct_field is not None
    }


async def _live() -> Response:
    """204 while the process runs."""
    return Response(status_code=204)


async def _ready(request: Request) -> Response:
    """204 while requests are welcome."""
    check_ready(request)
    return Response(status_code=204)


def _add_health(app: FastAPI) -> None:
    """Add /.well-known/live and /.well-known/ready, for which Weaviate waits when it starts."""
    for state, endpoint, statuses in (("live", _live, (500,)), ("ready", _ready, (500, 503))):
        app.add_api_route(
            f"/.well-known/{state}",
            endpoint,
            name=f"weaviate_{state}",
            status_code=204,
            response_class=Response,
            responses=errors(*statuses),
            tags=["Weaviate"],
        )


def _errors(shapes: Sequence[type[CompatRequest]]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` for the errors of these shapes."""
    kinds = dict.fromkeys(shape.errors for shape in reversed(shapes))
    models = tuple(kind.model for kind in kinds)
    statuses = sorted({status for kind in kinds for status in kind.statuses})
    described = errors(*statuses, model=Union[models])  # noqa: UP007
    if any(InvalidRequest.status not in kind.statuses for kind in kinds):
        described[400]["description"] = "The body is not strict JSON, or a field is wrong."
    return described


__all__ = ["add_compat_routes"]
