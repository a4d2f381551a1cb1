"""Answers Weaviate's module `reranker-transformers` as it asks and reads.

https://github.com/weaviate/weaviate/blob/v1.39.4/modules/reranker-transformers/clients/ranker.go

It sends no Content-Type, 32 documents in a request, and waits for /.well-known/ready when it starts.
"""

from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import Field
from typing_extensions import TypedDict

from headroom.service.api.clients.base import relevance
from headroom.service.api.clients.documents import texts
from headroom.service.api.clients.rerank import InfinityRequest, RerankAnswer
from headroom.service.api.errors import WEAVIATE
from headroom.service.api.openapi import errors
from headroom.service.api.post import check_ready
from headroom.service.descriptions import doc
from headroom.service.schemas.requests import example
from headroom.service.schemas.responses import Number, ScoreResponse

TAG = "Weaviate"


class DocumentScore(TypedDict):
    """One document's relevance."""

    document: Annotated[str, doc("The text.")]
    score: Annotated[Number, doc("`score` of /v1/score.")]


class WeaviateAnswer(RerankAnswer):
    """Fields that Weaviate reads, beside the answer for the other clients of this path."""

    scores: Annotated[list[DocumentScore], doc("Every document, in the order of the request.")]


class WeaviateRequest(InfinityRequest):
    """A rerank request as Weaviate sends it, known by its `property` or by having no Content-Type."""

    model_config = example(
        query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"], property=""
    )
    distinct_field = "property"
    servers = (TAG,)
    answers = (WeaviateAnswer,)
    errors = WEAVIATE
    takes_untyped = True

    property: Any = Field(None, description="Ignored: Weaviate sends it empty.")

    def answer(self, response: ScoreResponse) -> dict[str, Any]:
        """Return the answer with `scores`."""
        documents = texts(self.documents, self.rank_fields)
        is_raw = self.use_activation is False or self.raw_scores
        scores = [
            {"document": documents[result.index], "score": relevance(result, raw=is_raw)}
            for result in response.results
        ]
        return {**super().answer(response), "scores": scores}


async def live() -> Response:
    """204 while the process runs."""
    return Response(status_code=204)


async def ready(request: Request) -> Response:
    """204 while requests are welcome."""
    check_ready(request)
    return Response(status_code=204)


def add_routes(app: FastAPI) -> None:
    """Add /.well-known/live and /.well-known/ready."""
    for endpoint, statuses in ((live, (500,)), (ready, (500, 503))):
        app.add_api_route(
            f"/.well-known/{endpoint.__name__}",
            endpoint,
            name=f"weaviate_{endpoint.__name__}",
            status_code=204,
            response_class=Response,
            responses=errors(*statuses),
            tags=[TAG],
        )
