"""Voyage's rerank requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from service.api.clients.base import CompatRequest, ScoredBy, by_relevance, scored_by
from service.api.clients.cohere import CohereResult
from service.api.clients.documents import ReturnDocuments, Texts, TopN, warnings_of
from service.schemas.requests import Query, ScoreRequest, example
from service.schemas.responses import ScoreResponse


class VoyageUsage(TypedDict):
    """How much was scored."""

    total_tokens: Annotated[int, Field(description="Tokens scored, the query counted with each document.")]


class VoyageResult(CohereResult):
    """One document's relevance."""

    document: NotRequired[Annotated[str, Field(description="The text, with `return_documents`.")]]


class VoyageAnswer(ScoredBy):
    """The documents, most relevant first."""

    object: Annotated[Literal["list"], Field(description="What this is.")]
    data: Annotated[list[VoyageResult], Field(description="The most relevant first.")]
    usage: VoyageUsage
    warnings: Annotated[list[str], Field(description="Which documents were truncated, or are empty.")]


class VoyageRequest(CompatRequest):
    """Voyage's rerank request, known by its `top_k`."""

    model_config = example(query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"], top_k=1)
    known_by = "top_k"
    servers = ("Voyage",)
    answers = (VoyageAnswer,)

    query: Query = Field(description="What was searched for; not blank.")
    documents: Texts
    top_k: TopN
    return_documents: ReturnDocuments = None
    truncation: bool | None = Field(
        None,
        description="Whether to truncate documents that do not fit into the model's window, as by default; "
        "if false, they are an error.",
    )

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        reading = {"keep": "all"} if self.truncation is False else {}
        return self.scoring(reading, query=self.query, titles=self.documents)

    def answer(self, response: ScoreResponse) -> VoyageAnswer:
        """Return Voyage's answer."""
        results = by_relevance(response.results)[: self.top_k]
        return {
            "object": "list",
            "data": [
                {"index": r.index, "relevance_score": r.score, **self._returned(r.index)}  # type: ignore[typeddict-item]
                for r in results
            ],
            "usage": {"total_tokens": response.usage.tokens},
            "warnings": warnings_of(response),
            **scored_by(response),
        }

    def _returned(self, index: int) -> dict[str, Any]:
        return {"document": self.documents[index]} if self.return_documents else {}
