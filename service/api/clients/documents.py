"""The documents of a rerank request: texts, or objects of which some fields are the text."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from headroom.service.api.clients.base import CompatRequest
from headroom.service.descriptions import doc
from headroom.service.errors import InvalidRequest
from headroom.service.experiments.fields import WHOLE_NUMBER
from headroom.service.schemas.requests import Instruction, ScoreRequest, accepted
from headroom.service.schemas.responses import ScoreResponse, to_json

DEFAULT_FIELDS = ("text",)
WARNED_DOCUMENTS = 10
"""Documents that a warning lists."""

Count = Annotated[int, Field(ge=1, le=2**53 - 1), WHOLE_NUMBER]
"""How many of something a caller wants; more than there are is fine."""


TokensPerDoc = Annotated[
    Annotated[int, Field(ge=0, le=2**53 - 1), WHOLE_NUMBER] | None,
    doc(
        "How many tokens of each document to read, in chunks if they are more than the model's "
        "window holds; the best chunk counts. Default, and 0: what fits into the window beside the query.",
    ),
]
TruncatePromptTokens = Annotated[
    Annotated[int, Field(ge=-1, le=2**53 - 1), WHOLE_NUMBER] | None,
    doc(
        "How many tokens of each document to read at most; no more than the window holds. "
        "-1: what the window holds, as by default.",
    ),
]
TokensPerQuery = Annotated[
    Annotated[
        int,
        accepted(lambda form: form == 0 and not isinstance(form, bool), "should be 0"),
        WithJsonSchema({"type": "integer", "const": 0}),
    ]
    | None,
    doc("vLLM's: 0, no limit. Other limits are not supported."),
]
TopN = Annotated[Count | None, doc("How many results to return, the most relevant ones; default: all.")]
ReturnDocuments = Annotated[bool | None, doc("Whether each result brings its document; default: no.")]
DocumentForm = str | dict[str, Any]


class TemplateVariables(BaseModel):
    """Variables of a chat template, as vLLM takes them; only the instruction is read."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    instruction: Instruction = None


class PromptedRequest(CompatRequest):
    """A request that may have vLLM's variables of the model's prompt."""

    chat_template_kwargs: TemplateVariables | None = Field(
        None, description="vLLM's: an `instruction` in it counts in place of the field; others are ignored."
    )

    def scoring(self, reading: Mapping[str, Any] | None = None, **texts: Any) -> ScoreRequest:
        """Return our request, with the instruction of the prompt."""
        request = super().scoring(reading, **texts)
        variables = self.chat_template_kwargs
        if variables is None or variables.instruction is None:
            return request
        return request.model_copy(update={"instruction": variables.instruction})


_OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
Document = Annotated[
    DocumentForm,
    accepted(lambda form: isinstance(form, str | dict), "should be a string or an object with a text"),
    WithJsonSchema({"oneOf": [{"type": "string"}, _OBJECT]}),
]
Documents = Annotated[
    list[Document],
    Field(
        min_length=1,
        fail_fast=True,
        description="Texts, or objects with a `text` (or with the `rank_fields`).",
    ),
]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True, description="The texts to rank.")]


def texts(documents: Sequence[DocumentForm], fields: Sequence[str] | None) -> list[str]:
    """Return the text of each document: the string, or the object's fields.

    fields: which fields are ranked, in this order; None: `text`. One field's value is the text; more are
    written one in a line, as `field: value`, like the YAML that Cohere advises for its version 2.
    Raises InvalidRequest for an object without any of them.
    """
    wanted = DEFAULT_FIELDS if fields is None else tuple(fields)
    return [
        document if isinstance(document, str) else _text(document, wanted, number)
        for number, document in enumerate(documents)
    ]


def _text(document: dict[str, Any], fields: Sequence[str], number: int) -> str:
    values = {field: document[field] for field in fields if document.get(field) is not None}
    if not values:
        reason = "has no text" if fields == DEFAULT_FIELDS else "has none of the rank_fields"
        raise InvalidRequest(reason, param=f"documents[{number}]")
    written = {
        field: value if isinstance(value, str) else to_json(value).decode() for field, value in values.items()
    }
    if len(fields) == 1:
        return written[fields[0]]
    return "".join(f"{field}: {value}\n" for field, value in written.items())


def query_and_titles(queries: Sequence[str], titles: Sequence[str]) -> dict[str, Any]:
    """Return `query` and `titles`, or `pairs`: one query for all titles, or one for each.

    Raises InvalidRequest if there are several queries and another number of titles.
    """
    if len(queries) == 1:
        return {"query": queries[0], "titles": titles}
    if len(queries) != len(titles):
        reason = f"{len(queries)} queries for {len(titles)} titles; send one query, or as many"
        raise InvalidRequest(reason, param="query")
    return {"pairs": list(zip(queries, titles, strict=True))}


def reading_fields(
    max_tokens: int | None, truncate_tokens: int | None, max_chunks: int | None = None
) -> dict[str, Any]:
    """Return the fields of a DocumentsRequest that say how much of each document to read; {}: the beginning.

    max_tokens: None or 0: no such limit.
    truncate_tokens: TruncatePromptTokens. Above 0, it counts in place of the other two: documents are cut off
        after that many tokens, and never read in chunks.
    """
    if truncate_tokens is not None and truncate_tokens > 0:
        return {"overflow": "truncate", "max_tokens_per_doc": truncate_tokens}
    if not max_tokens and max_chunks is None:
        return {}
    limits = {"max_tokens_per_doc": max_tokens or None, "max_chunks_per_doc": max_chunks}
    return {"overflow": "chunks", **limits}


def warnings_of(response: ScoreResponse, advice: str = "") -> list[str]:
    """Return a sentence about each kind of documents with which something is amiss.

    Those that were truncated, are empty, were not reranked, or were left out. advice: what a caller can do
    about truncated documents.
    """
    truncated = [result.index for result in response.results if result.truncated]
    empty = [result.index for result in response.results if result.empty]
    warnings = []
    for indices, what, end in (
        (truncated, "truncated, so that only the beginning was scored", advice),
        (empty, "empty and ranked last", ""),
    ):
        if indices:
            documents = "1 document was" if len(indices) == 1 else f"{len(indices)} documents were"
            more = ", …" if len(indices) > WARNED_DOCUMENTS else ""
            listed = ", ".join(map(str, indices[:WARNED_DOCUMENTS])) + more
            warnings.append(f"{documents} {what} (index {listed}).{end}")
    if not response.reranked:
        unscored = len(response.results)
        warnings.append(
            f"{unscored} of the documents were not reranked ({response.reason}) and keep their order."
        )
    if response.dropped:
        warnings.append(f"{response.dropped} of the documents are below min_score or min_grade: left out.")
    return warnings
