"""One rerank shape for the clients of Jina, Infinity, vLLM and Cohere's version 1.

Each client finds in the answer what it reads. They differ in one field: Infinity returns a document as text,
the others as an object. Infinity's own path is /rerank, so documents are text there, unless a field that only
vLLM has tells that its client asks.
"""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from service.api.clients.base import ScoredBy, by_relevance, relevance, scored_by
from service.api.clients.cohere import (
    CohereResult,
    CohereV1Request,
    Meta,
    ResultWithDocument,
    ReturnedDocument,
    meta,
)
from service.api.clients.documents import (
    TokensPerDoc,
    TokensPerQuery,
    TruncatePromptTokens,
    reading,
    texts,
)
from service.schemas.requests import example
from service.schemas.responses import ScoreResponse

_VLLMS_OWN = {"max_tokens_per_doc", "max_tokens_per_query", "truncate_prompt_tokens", "use_activation"}


class TokenUsage(TypedDict):
    """How much was scored."""

    prompt_tokens: Annotated[int, Field(description="Tokens scored, the query counted with each document.")]
    total_tokens: Annotated[int, Field(description="The same: nothing is generated.")]


class _Ranked(ScoredBy):
    id: Annotated[str, Field(description="New for each answer.")]
    object: Annotated[Literal["rerank"], Field(description="What this is.")]
    created: Annotated[int, Field(description="Unix seconds.")]
    meta: Meta
    usage: TokenUsage


class RerankAnswer(_Ranked):
    """The documents, most relevant first."""

    results: Annotated[list[ResultWithDocument], Field(description="The most relevant first.")]


class ResultWithText(CohereResult):
    """One document's relevance."""

    document: NotRequired[
        Annotated[
            str | ReturnedDocument,
            Field(
                description="The document's text, with `return_documents`; an object in answers to requests "
                "with one of vLLM's own fields."
            ),
        ]
    ]


class InfinityAnswer(_Ranked):
    """The documents, most relevant first."""

    results: Annotated[list[ResultWithText], Field(description="The most relevant first.")]


class RerankRequest(CohereV1Request):
    """A rerank request as Cohere (version 1), Jina and vLLM take it."""

    model_config = example(
        query="angle bracket",
        documents=[{"title": "Simpson 12-Gauge Angle", "text": "For decks"}, {"text": "Wood deck screws"}],
        rank_fields=["title", "text"],
        return_documents=True,
    )
    servers: ClassVar[tuple[str, ...]] = ("Cohere", "Jina", "vLLM")
    answers: ClassVar[tuple[Any, ...]] = (RerankAnswer,)

    raw_scores: bool = Field(
        False,
        description="Whether `relevance_score` is a logit: that of a model with one label; of a graded model "
        "the log-odds of `score`.",
    )
    use_activation: bool | None = Field(
        True, description="vLLM's name for the opposite: false gives logits, as `raw_scores` does."
    )
    max_tokens_per_doc: TokensPerDoc = None
    max_tokens_per_query: TokensPerQuery = None
    truncate_prompt_tokens: TruncatePromptTokens = None

    def how_much(self) -> dict[str, Any]:
        """Return how much of each document to read."""
        return reading(
            max_tokens=self.max_tokens_per_doc,
            max_chunks=self.max_chunks_per_doc,
            truncate_tokens=self.truncate_prompt_tokens,
        )

    def answer(self, response: ScoreResponse) -> dict[str, Any]:
        """Return the answer that satisfies all these clients."""
        raw = self.use_activation is False or self.raw_scores
        results = by_relevance(response.results)[: self.top_n]
        tokens = response.usage.tokens
        return {
            "id": str(uuid.uuid4()),
            "object": "rerank",
            "results": [
                {"index": r.index, "relevance_score": relevance(r, raw=raw), **self.returned(r.index)}
                for r in results
            ],
            "meta": meta(response, "1", "" if self.how_much() else " max_chunks_per_doc reads more of them."),
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "created": int(time.time()),
            **scored_by(response),
        }


class InfinityRequest(RerankRequest):
    """A rerank request as Infinity takes it at its own path."""

    model_config = example(query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"])
    servers = ("Infinity", "vLLM")
    answers = (InfinityAnswer,)

    def returned(self, index: int) -> dict[str, Any]:
        """Return the fields that show a result's document; none if it was not asked for."""
        if not self.return_documents or not _VLLMS_OWN.isdisjoint(self.model_fields_set):
            return super().returned(index)
        return {"document": texts([self.documents[index]], self.rank_fields)[0]}
