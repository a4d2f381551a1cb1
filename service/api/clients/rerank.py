"""One rerank shape for the clients of Cohere (versions 1 and 2), Jina, Infinity, vLLM and llama.cpp.

Each client finds in the answer what it reads. They differ in one field: Infinity returns a document as text,
the others as an object. Infinity's own path is /rerank, so documents are text there, unless the request has
`truncate_prompt_tokens`, which vLLM's clients alone send. Weaviate reads `scores` besides.
"""

import math
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NotRequired

import orjson
from pydantic import ConfigDict, Field, WithJsonSchema
from typing_extensions import TypedDict

from headroom.service.api.clients.answers import (
    ScoredBy,
    TokenUsage,
    scored_by,
    usage_of,
    warnings_of,
)
from headroom.service.api.clients.base import Count, RankingRequest, ReturnDocuments, TopN
from headroom.service.api.errors import WEAVIATE
from headroom.service.api.ranking import impression_of
from headroom.service.descriptions import documented
from headroom.service.errors import InvalidRequest
from headroom.service.fields import WHOLE_NUMBER
from headroom.service.schemas.requests import Query, ScoreRequest, accepted, example
from headroom.service.schemas.responses import Number, ScoreResponse

DEFAULT_FIELDS = ("text",)
MAX_RANK_FIELDS = 64

UNIT_DOCUMENTS = 100
"""Documents in one of Cohere's search units."""

DocumentForm = str | dict[str, Any]
_OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
Document = Annotated[
    DocumentForm,
    accepted(lambda form: isinstance(form, str | dict), "should be a string or an object with a text"),
    WithJsonSchema({"oneOf": [{"type": "string"}, _OBJECT]}),
]


def texts_of(documents: Sequence[DocumentForm], fields: Sequence[str] | None) -> list[str]:
    """Return the text of each document: the string, or the object's fields.

    fields: which fields are ranked, in this order; None: `text`. One field's value is the text; more are
    written one in a line, as `field: value`, like the YAML that Cohere advises for its version 2.
    Raises InvalidRequest for an object without any of them.
    """
    wanted = DEFAULT_FIELDS if fields is None else tuple(fields)
    return [
        document if isinstance(document, str) else _text_of(document, wanted, number)
        for number, document in enumerate(documents)
    ]


def _text_of(document: dict[str, Any], fields: Sequence[str], number: int) -> str:
    values = {field: document[field] for field in fields if document.get(field) is not None}
    if not values:
        reason = "has no text" if fields == DEFAULT_FIELDS else "has none of the rank_fields"
        raise InvalidRequest(reason, param=f"documents[{number}]")
    written = {
        field: value if isinstance(value, str) else orjson.dumps(value).decode()
        for field, value in values.items()
    }
    if len(fields) == 1:
        return written[fields[0]]
    return "".join(f"{field}: {value}\n" for field, value in written.items())


@documented
class Meta(TypedDict):
    """The part of an answer besides its results, for Cohere's clients."""

    api_version: dict[str, str]
    """`version`, 1 or 2: Cohere's that it follows."""
    billed_units: dict[str, int]
    """`search_units`: one for each 100 documents, the last ones rounded up."""
    tokens: dict[str, int]
    """`input_tokens`: scored, the query counted with each document; `output_tokens`: 0."""
    warnings: list[str]
    """Which documents were truncated, empty, not reranked or left out."""


@documented
class ReturnedDocument(TypedDict):
    """The document as it was sent; an object keeps its other fields too."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    text: NotRequired[str]
    """The text."""


@documented
class RankedResult(TypedDict):
    """One document's relevance."""

    index: int
    """Position in the request."""
    relevance_score: Number
    """`score` of /v1/score; else a logit."""
    document: NotRequired[str | ReturnedDocument]
    """With `return_documents`, the document: an object; at /rerank its text, unless the request has
    `truncate_prompt_tokens`."""


@documented
class RerankAnswer(ScoredBy):
    """The documents, most relevant first."""

    id: str
    """New for each answer; of an interleaved one, its impression."""
    object: Literal["rerank"]
    """What this is."""
    created: int
    """Unix seconds."""
    results: list[RankedResult]
    """The most relevant first."""
    meta: Meta
    usage: TokenUsage


class RerankRequest(RankingRequest):
    """A rerank request as Cohere (version 1), Jina, vLLM and llama.cpp take it."""

    model_config = example(
        query="angle bracket",
        documents=[{"title": "Simpson 12-Gauge Angle", "text": "For decks"}, {"text": "Wood deck screws"}],
        rank_fields=["title", "text"],
        return_documents=True,
    )
    servers: ClassVar[tuple[str, ...]] = ("Cohere", "Jina", "vLLM", "Xinference", "llama.cpp")
    answers: ClassVar[tuple[Any, ...]] = (RerankAnswer,)
    version: ClassVar[str] = "1"
    """Cohere's version, as the answer says it; version 2 returns no documents."""

    query: Query
    """What was searched for; not blank."""
    documents: list[Document] = Field(min_length=1, fail_fast=True)
    """Texts, or objects with a `text` (or with the `rank_fields`)."""
    top_n: TopN = None
    return_documents: ReturnDocuments = None
    rank_fields: (
        Annotated[list[str], Field(min_length=1, max_length=MAX_RANK_FIELDS, fail_fast=True)] | None
    ) = None
    """The fields of objects that are ranked, in this order; default: `text`."""
    max_chunks_per_doc: Count | None = None
    """How many chunks of a document that is longer than the model's window to read; the best one counts.
    Default: its beginning alone."""
    max_tokens_per_doc: Annotated[int, Field(ge=0, le=2**53 - 1), WHOLE_NUMBER] | None = None
    """How many tokens of each document to read, in chunks if they are more than the model's window holds; the
    best chunk counts. Default, and 0: what fits into the window beside the query."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**53 - 1), WHOLE_NUMBER] | None = None
    """How many tokens of each document to read at most, from its beginning and never in chunks; no more than
    the window holds. -1: what the window holds, as by default."""

    def reading_limits(self) -> dict[str, Any]:
        """Return how much of each document to read, if not just what the window holds."""
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens > 0:
            return {"overflow": "truncate", "max_tokens_per_doc": self.truncate_prompt_tokens}
        if not self.max_tokens_per_doc and self.max_chunks_per_doc is None:
            return {}
        return {
            "overflow": "chunks",
            "max_tokens_per_doc": self.max_tokens_per_doc or None,
            "max_chunks_per_doc": self.max_chunks_per_doc,
        }

    def score_request(self) -> ScoreRequest:
        """Return our request."""
        titles = texts_of(self.documents, self.rank_fields)
        return self.scoring(query=self.query, titles=titles, **self.reading_limits())

    def returned(self, index: int) -> Any:
        """Return how a result shows its document."""
        document = self.documents[index]
        return {"text": document} if isinstance(document, str) else document

    def answer(self, response: ScoreResponse) -> dict[str, Any]:
        """Return the answer that satisfies all these clients."""
        results = [
            {"index": result.index, "relevance_score": self.relevance(result)}
            for result in self.ranked(response)
        ]
        if self.return_documents and self.version == "1":
            results = [one | {"document": self.returned(one["index"])} for one in results]
        advice = " max_tokens_per_doc or max_chunks_per_doc reads more of them."
        return {
            "id": impression_of(response) or str(uuid.uuid4()),
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


class InfinityRequest(RerankRequest):
    """A rerank request as Infinity takes it at its own path."""

    model_config = example(query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"])
    servers: ClassVar[tuple[str, ...]] = ("Infinity", "vLLM")

    def returned(self, index: int) -> Any:
        """Return how a result shows its document: as text, to vLLM's clients as an object."""
        if "truncate_prompt_tokens" in self.model_fields_set:
            return super().returned(index)
        return texts_of([self.documents[index]], self.rank_fields)[0]


@documented
class DocumentScore(TypedDict):
    """One document's relevance, for Weaviate."""

    document: str
    """The text."""
    score: Number
    """`score` of /v1/score."""


@documented
class WeaviateAnswer(RerankAnswer):
    """Fields that Weaviate reads, beside the answer for the other clients of this path."""

    scores: list[DocumentScore]
    """Every document, in the order of the request."""


class WeaviateRequest(InfinityRequest):
    """A rerank request as Weaviate sends it, known by its `property` or by having no Content-Type.

    https://github.com/weaviate/weaviate/blob/v1.39.4/modules/reranker-transformers/clients/ranker.go
    """

    model_config = example(
        query="angle bracket", documents=["Wood deck screws", "12-Gauge Angle"], property=""
    )
    distinct_field = "property"
    servers = ("Weaviate",)
    answers = (WeaviateAnswer,)
    errors = WEAVIATE
    takes_untyped = True

    property: Any = None
    """Ignored: Weaviate sends it empty."""

    def answer(self, response: ScoreResponse) -> dict[str, Any]:
        """Return the answer with `scores`."""
        documents = texts_of(self.documents, self.rank_fields)
        scores = [
            {"document": documents[result.index], "score": self.relevance(result)}
            for result in response.results
        ]
        return {**super().answer(response), "scores": scores}
