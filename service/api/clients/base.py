"""The base of the shapes of other people's clients: our fields, the translation, and the errors.

A shape is a pydantic model of the request (`CompatRequest`) with two translations: `score_request` makes our
scoring request of it, `answer` makes their answer of ours. Limits, deadlines and experiments are those of
`POST /v1/score`. `headroom.service.api.clients` says which shapes each path takes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from headroom.service.api.errors import RERANK, ErrorShape
from headroom.service.api.post import Post, Timed, validated
from headroom.service.api.ranking import headers_of, score
from headroom.service.config.settings import Settings
from headroom.service.descriptions import doc
from headroom.service.errors import InvalidRequest
from headroom.service.schemas.requests import (
    DocumentsRequest,
    Ids,
    QueryId,
    ScoreRequest,
    ScoringFields,
    too_many,
)
from headroom.service.schemas.responses import (
    Assignment,
    HeadMaskInfo,
    ScoreResponse,
    ScoreResult,
)
from headroom.service.sentences import shortened


class OurFields(ScoringFields):
    """The fields of /v1/score that a request in another server's shape may have. Unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class CompatRequest(OurFields, ABC):
    """A request in another server's shape."""

    distinct_field: ClassVar[str | None] = None
    """The field whose presence tells this shape from the others at its path."""
    takes_untyped: ClassVar[bool] = False
    """Whether its clients send no Content-Type."""
    servers: ClassVar[tuple[str, ...]]
    """Whose shape it is."""
    answers: ClassVar[tuple[Any, ...]]
    """The types of its answers."""
    errors: ClassVar[ErrorShape] = RERANK
    names: ClassVar[Mapping[str, str]] = {"titles": "documents"}
    """Their names of our fields, for messages."""

    model: str | None = Field(
        None,
        description="`NAME@VARIANT` names a variant of `GET /v1/variants`. Any other name is taken and "
        "ignored: the service's own model scores.",
    )

    @classmethod
    def example(cls) -> Any:
        """Return the request that the documentation shows."""
        return cast(dict[str, Any], cls.model_config["json_schema_extra"])["examples"][0]

    def check_count(self, settings: Settings) -> None:
        """Raise InvalidRequest for more texts than a request may have, before anything is made of them."""
        for field in self.names.values():
            texts = getattr(self, field)
            if isinstance(texts, list) and len(texts) > settings.max_pairs:
                raise too_many(len(texts), field, settings)

    @abstractmethod
    def score_request(self) -> ScoreRequest:
        """Return our request; `scoring` makes one with the fields that all shapes share."""

    @abstractmethod
    def answer(self, response: ScoreResponse) -> Any:
        """Return their answer, as JSON values or dataclasses."""

    def headers(self, request: ScoreRequest, response: ScoreResponse) -> Mapping[str, str]:  # noqa: ARG002
        """Return the headers that the answer brings besides ours. request: our request, made of this one."""
        return {}

    def scoring(self, reading: Mapping[str, Any] | None = None, **texts: Any) -> ScoreRequest:
        """Return our request for `query` and `titles`, or `pairs`, with this request's variant and mask.

        reading: the fields of a DocumentsRequest that say how to read the texts. Raises InvalidRequest.
        """
        ours = {name: getattr(self, name) for name in OurFields.model_fields} | {"variant": self._variant()}
        fields = {**texts, **ours, **self.ranking_fields(), **(reading or {})}
        is_plain = fields.keys() <= ScoreRequest.model_fields.keys()
        return validated(ScoreRequest if is_plain else DocumentsRequest, fields)

    def ranking_fields(self) -> dict[str, Any]:
        """Return the fields of our request that say which order the answer shows: by default, none."""
        return {"is_ranked": False}

    def _variant(self) -> str | None:
        """Return the variant that `variant` or `model` names."""
        _, at, named = (self.model or "").rpartition("@")
        if not at:
            return self.variant
        if self.variant not in (None, named):
            raise InvalidRequest(
                f"names the variant {shortened(named)}, but variant is another", param="model"
            )
        return named

    def their_name(self, param: str) -> str:
        """Return their name of the field at fault, such as `documents[3]` for `titles[3]`."""
        field = param.partition("[")[0]
        index = param[len(field) :]
        if field == "variant" and self.variant is None:
            return "model"
        if field == "pairs" and "query" in self.names:  # queries and documents are two lists
            field = "query"
            index = index.removesuffix("[0]")
        return self.names.get(field, field) + index


class RankingRequest(CompatRequest):
    """A request whose answer is the documents' order."""

    ids: Ids = None
    query_id: QueryId = None

    @property
    @abstractmethod
    def documents_shown(self) -> int | None:
        """The number of documents that the answer shows, the best ones; None: all."""

    def ranking_fields(self) -> dict[str, Any]:
        """Return the fields of our request that say which order the answer shows."""
        shown = self.documents_shown
        fields = {"ids": self.ids, "query_id": self.query_id}
        return fields if shown is None else fields | {"top_n": shown}


def refuse_order_fields(fields: OurFields, *names: str) -> None:
    """Raise InvalidRequest if a request whose answer is no order has one of these fields; default: each.

    on_failure is refused only if it asks for an order.
    """
    for name in names or ("on_failure", "min_score", "min_grade"):
        if getattr(fields, name) not in (None, "error"):
            raise InvalidRequest("the answers of this route are no order of titles; leave it out", param=name)


async def score_and_answer(request: Post, body: CompatRequest) -> Timed:
    """Score a request in another shape and answer in that shape."""
    body.check_count(request.settings)
    try:
        score_request = body.score_request()
        response = await score(request, score_request)
    except InvalidRequest as error:
        raise renamed(error, body.their_name) from None
    headers = {**body.headers(score_request, response), **headers_of(response)}
    return Timed(body.answer(response), response.timing_ms, headers)


def renamed(error: InvalidRequest, their_name: Callable[[str], str]) -> InvalidRequest:
    """Return the error with the name that `their_name` gives to our name of the field at fault."""
    if error.param is None:
        return error
    sentence = error.message.removeprefix(f"{error.param}: ")
    return InvalidRequest(sentence, param=their_name(error.param))


def by_relevance(results: Sequence[ScoreResult]) -> list[ScoreResult]:
    """Return the results in the order to show: an interleaved answer's by rank, others by raw score.

    Equal ones stay in the request's order.
    """
    return sorted(results, key=lambda result: -result.raw_score if result.rank is None else result.rank)


def relevance(result: ScoreResult, *, raw: bool) -> Any:
    """Return a pair's relevance as /v1/score has it: `score`, or on the scale of logits `raw_score`."""
    return result.raw_score if raw else result.score


class ScoredBy(TypedDict):
    """The model, variant and mask that judged the documents: ours, in each answer."""

    model: Annotated[str, doc("What scored, as `model` takes it: `NAME@VARIANT`.")]
    head_mask: Annotated[HeadMaskInfo, doc("Ours: the mask that was applied, the variant's included.")]
    assignment: Annotated[Assignment | None, doc("Ours: null where no experiment decided the variant.")]
    degraded: Annotated[bool, doc("Ours: as in /v1/score, whether the load made it worse.")]


def scored_by(response: ScoreResponse) -> ScoredBy:
    """Return the fields that tell what judged the documents."""
    return {
        "model": model_name(response),
        "head_mask": response.head_mask,
        "assignment": response.assignment,
        "degraded": response.degraded,
    }


def model_name(response: ScoreResponse) -> str:
    """Return what scored, as `model` takes it: `NAME@VARIANT`."""
    return f"{response.model}@{response.variant}"


class TokenUsage(TypedDict):
    """How much was read, for the clients of Jina and vLLM."""

    prompt_tokens: Annotated[int, doc("Tokens scored, the query counted with each document.")]
    total_tokens: Annotated[int, doc("The same: nothing is generated.")]


def usage_of(response: ScoreResponse) -> TokenUsage:
    """Return how much was read."""
    return {"prompt_tokens": response.usage.tokens, "total_tokens": response.usage.tokens}
