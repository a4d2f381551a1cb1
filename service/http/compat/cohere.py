"""Cohere's rerank requests and answers, versions 1 and 2."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from service.http.compat.base import CompatRequest, by_relevance, model_name, relevance
from service.schemas.requests import ScoreRequest
from service.schemas.responses import Number, ScoreResponse

UNIT_DOCUMENTS = 100
"""Documents in one of Cohere's search units."""


RANKED = {
    "id": "5807ee2e-0cda-445a-9ec8-864c60a06606",
    "results": [{"index": 1, "relevance_score": 0.717}],
    "model": "headroom-default@full",
}
"""An answer, as the OpenAPI document shows it."""


@dataclass(slots=True)
class CohereResult:
    """One document's relevance."""

    index: Annotated[int, Field(description="Position in the request.")]
    relevance_score: Annotated[Number, Field(description="`score` of /v1/score.")]


@dataclass(slots=True)
class CohereAnswer:
    """The documents, most relevant first."""

    id: Annotated[str, Field(description="New for each answer.")]
    results: Annotated[list[CohereResult], Field(description="The most relevant first.")]
    model: Annotated[str, Field(description="What scored: `NAME@VARIANT`.")]


class CohereV2Request(CompatRequest):
    """Cohere's v2 rerank request."""

    query: str = Field(description="What was searched for; not blank.")
    documents: list[str] = Field(description="The texts to rank.")
    top_n: int | None = Field(None, ge=1, description="How many results to return; default: all.")

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"query": "angle bracket", "documents": ["Wood deck screws", "Steel angle"], "top_n": 1}
            ]
        }
    )

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        return self.scoring(query=self.query, titles=self.documents)

    def answer(self, scored: ScoreResponse) -> CohereAnswer:
        """Return Cohere's answer."""
        results = by_relevance(scored.results, relevance)[: self.top_n]
        return CohereAnswer(
            uuid.uuid4().hex,
            [CohereResult(result.index, result.score) for result in results],
            model_name(scored),
        )
