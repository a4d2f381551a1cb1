"""Voyage's rerank requests and answers."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from headroom.service.api.clients.answers import ScoredBy, scored_by, warnings_of
from headroom.service.api.clients.base import RankingRequest, ReturnDocuments, TopN
from headroom.service.descriptions import documented
from headroom.service.schemas.requests import Query, ScoreRequest, example
from headroom.service.schemas.responses import Number, ScoreResponse


@documented
class VoyageResult(TypedDict):
    """One document's relevance."""

    index: int
    """Position in the request."""
    relevance_score: Number
    """`score` of /v1/score."""
    document: NotRequired[str]
    """The text, with `return_documents`."""


@documented
class VoyageAnswer(ScoredBy):
    """The documents, most relevant first."""

    object: Literal["list"]
    """What this is."""
    data: list[VoyageResult]
    """The most relevant first."""
    usage: dict[str, int]
    """`total_tokens`: scored, the query counted with each document."""
    warnings: list[str]
    """Which documents were truncated, empty, not reranked or left out."""


class VoyageRequest(RankingRequest):
    """Voyage's rerank request, known by its `top_k`."""

    model_config = example(query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"], top_k=1)
    distinct_field = "top_k"
    servers = ("Voyage",)
    answers = (VoyageAnswer,)
    names: ClassVar[Mapping[str, str]] = {"titles": "documents", "top_n": "top_k"}

    query: Query
    """What was searched for; not blank."""
    documents: list[str] = Field(min_length=1, fail_fast=True)
    """The texts to rank."""
    top_k: TopN
    return_documents: ReturnDocuments = None
    truncation: bool | None = None
    """Whether to truncate documents that do not fit into the model's window, as by default; if false, they
    are an error."""

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        reading = {"keep": "all"} if self.truncation is False else {}
        return self.scoring(query=self.query, titles=self.documents, **reading)

    def answer(self, response: ScoreResponse) -> dict[str, Any]:
        """Return Voyage's answer."""
        data: list[dict[str, Any]] = [
            {"index": result.index, "relevance_score": self.relevance(result)}
            for result in self.ranked(response)
        ]
        if self.return_documents:
            data = [one | {"document": self.documents[one["index"]]} for one in data]
        return {
            "object": "list",
            "data": data,
            "usage": {"total_tokens": response.usage.tokens},
            "warnings": warnings_of(response),
            **scored_by(response),
        }
