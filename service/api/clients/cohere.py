"""Cohere's rerank requests and answers: version 2, and version 1, which other servers' shapes build on."""

from __future__ import annotations

import math
import uuid
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from service.api.clients.base import CompatRequest, ScoredBy, by_relevance, scored_by
from service.api.clients.documents import (
    Count,
    Documents,
    ReturnDocuments,
    Texts,
    TokensPerDoc,
    TokensPerQuery,
    TopN,
    reading,
    texts,
    warnings_of,
)
from service.schemas.requests import Query, ScoreRequest, example
from service.schemas.responses import Number, ScoreResponse

UNIT_DOCUMENTS = 100
"""Documents in one of Cohere's search units."""


class BilledUnits(TypedDict):
    """The units that Cohere would bill."""

    search_units: Annotated[int, Field(description="One for each 100 documents, the last ones rounded up.")]


class Tokens(TypedDict):
    """How much was read."""

    input_tokens: Annotated[int, Field(description="Tokens scored, the query counted with each document.")]


class ApiVersion(TypedDict):
    """Which of Cohere's versions the answer follows."""

    version: Annotated[str, Field(description="1 or 2.")]


class Meta(TypedDict):
    """The part of an answer besides its results."""

    api_version: ApiVersion
    billed_units: BilledUnits
    tokens: Tokens
    warnings: Annotated[list[str], Field(description="Which documents were truncated, or are empty.")]


class CohereResult(TypedDict):
    """One document's relevance."""

    index: Annotated[int, Field(description="Position in the request.")]
    relevance_score: Annotated[Number, Field(description="`score` of /v1/score.")]


class CohereAnswer(ScoredBy):
    """The documents, most relevant first."""

    id: Annotated[str, Field(description="New for each answer.")]
    results: Annotated[list[CohereResult], Field(description="The most relevant first.")]
    meta: Meta


class CohereV2Request(CompatRequest):
    """Cohere's rerank request, version 2."""

    model_config = example(query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"], top_n=1)
    servers = ("Cohere",)
    answers = (CohereAnswer,)

    query: Query = Field(description="What was searched for; not blank.")
    documents: Texts
    top_n: TopN = None
    max_tokens_per_doc: TokensPerDoc = None
    max_tokens_per_query: TokensPerQuery = None

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        how_much = reading(max_tokens=self.max_tokens_per_doc)
        return self.scoring(how_much, query=self.query, titles=self.documents)

    def answer(self, response: ScoreResponse) -> CohereAnswer:
        """Return Cohere's answer."""
        results = by_relevance(response.results)[: self.top_n]
        advice = " max_tokens_per_doc reads more of them." if not self.max_tokens_per_doc else ""
        return {
            "id": str(uuid.uuid4()),
            "results": [{"index": r.index, "relevance_score": r.score} for r in results],
            "meta": meta(response, "2", advice),
            **scored_by(response),
        }


class CohereV1Request(CompatRequest):
    """Cohere's rerank request, version 1."""

    query: Query = Field(description="What was searched for; not blank.")
    documents: Documents
    top_n: TopN = None
    return_documents: ReturnDocuments = None
    rank_fields: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="The fields of objects that are ranked, in this order; default: `text`."
    )
    max_chunks_per_doc: Count | None = Field(
        None,
        description="How many chunks of a document that is longer than the model's window to read; the best "
        "one counts. Default: its beginning alone.",
    )

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        titles = texts(self.documents, self.rank_fields)
        return self.scoring(self.how_much(), query=self.query, titles=titles)

    def how_much(self) -> dict[str, Any]:
        """Return how much of each document to read."""
        return reading(max_chunks=self.max_chunks_per_doc)

    def returned(self, index: int) -> dict[str, Any]:
        """Return the fields that show a result's document; none if it was not asked for."""
        if not self.return_documents:
            return {}
        document = self.documents[index]
        return {"document": {"text": document} if isinstance(document, str) else document}


class ReturnedDocument(TypedDict):
    """The document as it was sent; an object keeps its other fields too."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    text: NotRequired[Annotated[str, Field(description="The text.")]]


class ResultWithDocument(CohereResult):
    """One document's relevance."""

    document: NotRequired[
        Annotated[ReturnedDocument, Field(description="The document, with `return_documents`.")]
    ]


def meta(response: ScoreResponse, version: str, advice: str = "") -> Meta:
    """Return Cohere's `meta` of an answer. advice: how to have more of long documents read."""
    return {
        "api_version": {"version": version},
        "billed_units": {"search_units": math.ceil(len(response.results) / UNIT_DOCUMENTS)},
        "tokens": {"input_tokens": response.usage.tokens},
        "warnings": warnings_of(response, advice),
    }
