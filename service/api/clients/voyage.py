"""Voyage's rerank requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from service.api.clients.base import CompatRequest, ScoredBy, by_relevance, scored_by
from service.api.clients.cohere import CohereResult, TopN
from service.api.clients.documents import Texts, warnings_of
from service.schemas.requests import Query, ScoreRequest
from service.schemas.responses import ScoreResponse
from service.schemas.texts import TruncationRequest


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

    chosen_by = "top_k"

    query: Query = Field(description="What was searched for; not blank.")
    documents: Texts = Field(min_length=1, description="The texts to rank.")
    top_k: TopN
    return_documents: bool | None = Field(
        None, description="Whether each result brings its document; default: no."
    )
    truncation: bool | None = Field(
        None,
        description="Whether to truncate documents that do not fit into the model's window, as by default; "
        "if false, they are an error.",
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "rerank-2.5",
                    "query": "angle bracket",
                    "documents": ["Wood deck screws", "Simpson Strong-Tie 12-Gauge Angle"],
                    "top_k": 1,
                }
            ]
        }
    )

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        request = self.scoring(query=self.query, titles=self.documents)
        return TruncationRequest.of(request, "all" if self.truncation is False else "beginning")

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
