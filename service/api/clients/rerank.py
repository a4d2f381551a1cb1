"""One rerank shape for the clients of Cohere (versions 1 and 2), Jina, Infinity and vLLM.

Each client finds in the answer what it reads. They differ in one field: Infinity returns a document as text,
the others as an object. Infinity's own path is /rerank, so documents are text there, unless a field that only
vLLM has tells that its client asks.
"""

import math
import time
import uuid
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from headroom.service.api.clients.base import (
    RankingRequest,
    ScoredBy,
    TokenUsage,
    by_relevance,
    relevance,
    scored_by,
    usage_of,
)
from headroom.service.api.clients.documents import (
    Count,
    Documents,
    PromptedRequest,
    ReturnDocuments,
    TokensPerDoc,
    TokensPerQuery,
    TopN,
    TruncatePromptTokens,
    reading_fields,
    texts,
    warnings_of,
)
from headroom.service.descriptions import doc
from headroom.service.schemas.requests import Query, ScoreRequest, example
from headroom.service.schemas.responses import Number, ScoreResponse

MAX_RANK_FIELDS = 64

UNIT_DOCUMENTS = 100
"""Documents in one of Cohere's search units."""

_VLLMS_OWN = set(
    "max_tokens_per_doc max_tokens_per_query truncate_prompt_tokens use_activation "
    "chat_template_kwargs".split()
)


class Meta(TypedDict):
    """The part of an answer besides its results, for Cohere's clients."""

    api_version: Annotated[dict[str, str], doc("`version`, 1 or 2: Cohere's that it follows.")]
    billed_units: Annotated[
        dict[str, int],
        doc("`search_units`: one for each 100 documents, the last ones rounded up."),
    ]
    tokens: Annotated[
        dict[str, int],
        doc("`input_tokens`: scored, the query counted with each document; `output_tokens`: 0."),
    ]
    warnings: Annotated[list[str], doc("Which documents were truncated, empty, not reranked or left out.")]


class ReturnedDocument(TypedDict):
    """The document as it was sent; an object keeps its other fields too."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    text: NotRequired[Annotated[str, doc("The text.")]]


class RankedResult(TypedDict):
    """One document's relevance."""

    index: Annotated[int, doc("Position in the request.")]
    relevance_score: Annotated[Number, doc("`score` of /v1/score; else a logit.")]
    document: NotRequired[
        Annotated[
            str | ReturnedDocument,
            doc(
                "With `return_documents`, the document: an object; at /rerank its text, "
                "unless the request has one of vLLM's own fields."
            ),
        ]
    ]


class RerankAnswer(ScoredBy):
    """The documents, most relevant first."""

    id: Annotated[str, doc("New for each answer; of an interleaved one, its impression.")]
    object: Annotated[Literal["rerank"], doc("What this is.")]
    created: Annotated[int, doc("Unix seconds.")]
    results: Annotated[list[RankedResult], doc("The most relevant first.")]
    meta: Meta
    usage: TokenUsage


class RerankRequest(RankingRequest, PromptedRequest):
    """A rerank request as Cohere (version 1), Jina and vLLM take it."""

    model_config = example(
        query="angle bracket",
        documents=[{"title": "Simpson 12-Gauge Angle", "text": "For decks"}, {"text": "Wood deck screws"}],
        rank_fields=["title", "text"],
        return_documents=True,
    )
    servers: ClassVar[tuple[str, ...]] = ("Cohere", "Jina", "vLLM", "Xinference")
    answers: ClassVar[tuple[Any, ...]] = (RerankAnswer,)
    version: ClassVar[str] = "1"
    """Cohere's version, as the answer says it; version 2 returns no documents."""

    query: Query = Field(description="What was searched for; not blank.")
    documents: Documents
    top_n: TopN = None
    return_documents: ReturnDocuments = None
    rank_fields: (
        Annotated[list[str], Field(min_length=1, max_length=MAX_RANK_FIELDS, fail_fast=True)] | None
    ) = Field(None, description="The fields of objects that are ranked, in this order; default: `text`.")
    raw_scores: bool = Field(
        False,
        description="Whether `relevance_score` is a logit: that of a model with one label; of a graded model "
        "the log-odds of `score`.",
    )
    use_activation: bool | None = Field(
        True, description="vLLM's name for the opposite: false gives logits, as `raw_scores` does."
    )
    max_chunks_per_doc: Count | None = Field(
        None,
        description="How many chunks of a document that is longer than the model's window to read; the best "
        "one counts. Default: its beginning alone.",
    )
    max_tokens_per_doc: TokensPerDoc = None
    max_tokens_per_query: TokensPerQuery = None
    truncate_prompt_tokens: TruncatePromptTokens = None

    @property
    def documents_shown(self) -> int | None:
        """The number of documents that the answer shows, the best ones; None: all."""
        return self.top_n

    def reading_limits(self) -> dict[str, Any]:
        """Return how much of each document to read."""
        return reading_fields(self.max_tokens_per_doc, self.truncate_prompt_tokens, self.max_chunks_per_doc)

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        titles = texts(self.documents, self.rank_fields)
        return self.scoring(self.reading_limits(), query=self.query, titles=titles)

    def returned(self, index: int) -> Any:
        """Return how a result shows its document."""
        document = self.documents[index]
        return {"text": document} if isinstance(document, str) else document

    def answer(self, response: ScoreResponse) -> dict[str, Any]:
        """Return the answer that satisfies all these clients."""
        raw = self.use_activation is False or self.raw_scores
        results = [
            {"index": one.index, "relevance_score": relevance(one, raw=raw)}
            for one in by_relevance(response.results)[: self.top_n]
        ]
        if self.return_documents and self.version == "1":
            results = [one | {"document": self.returned(one["index"])} for one in results]
        advice = " max_tokens_per_doc or max_chunks_per_doc reads more of them."
        return {
            "id": response.impression or str(uuid.uuid4()),
            "object": "rerank",
            "results": results,
            "meta": {
                "api_version": {"version": self.version},
                "billed_units": {"search_units": math.ceil(len(self.documents) / UNIT_DOCUMENTS)},
                "tokens": {"input_tokens": response.usage.tokens, "output_tokens": 0},
                "warnings": warnings_of(response, "" if self.reading_limits() else advice),
            },
            "usage": usage_of(response),
            "created": int(time.time()),
            **scored_by(response),
        }


class CohereV2Request(RerankRequest):
    """A rerank request as Cohere takes it, version 2."""

    model_config = example(query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"], top_n=1)
    servers = ("Cohere",)
    version = "2"


class LlamaCppRequest(RerankRequest):
    """A rerank request at llama.cpp's other names of /v1/rerank."""

    servers = ("llama.cpp",)


class InfinityRequest(RerankRequest):
    """A rerank request as Infinity takes it at its own path."""

    model_config = example(query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"])
    servers: ClassVar[tuple[str, ...]] = ("Infinity", "vLLM")

    def returned(self, index: int) -> Any:
        """Return how a result shows its document: as text, to vLLM's clients as an object."""
        if not _VLLMS_OWN.isdisjoint(self.model_fields_set):
            return super().returned(index)
        return texts([self.documents[index]], self.rank_fields)[0]
