"""The base of the shapes of other people's clients: our fields, the translation, and the errors.

A shape is a pydantic model of the request (`CompatRequest`) with two translations: `score_request` makes our
scoring request of it, `answer` makes their answer of ours. Limits, deadlines and experiments are those of
`POST /v1/score`. `service.api.clients` says which shapes each path takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from service.api.errors import ErrorShape, ours, rerank
from service.api.post import Post, Timed, validated
from service.errors import InvalidRequest, shown
from service.experiments.fields import Attributes, Unit
from service.schemas.documents import DocumentsRequest
from service.schemas.limits import check_score
from service.schemas.requests import DeadlineMs, MaskForm, ScoreRequest, VariantName
from service.schemas.responses import (
    Assignment,
    Error,
    ErrorDetail,
    HeadMaskInfo,
    ScoreResponse,
    ScoreResult,
)


@dataclass(slots=True)
class RerankError:
    """An error of a rerank route: the same sentence wherever a client looks for it."""

    message: Annotated[str, Field(description="One sentence; for Cohere's client.")]
    detail: Annotated[str, Field(description="The same; for LlamaIndex, Haystack and Voyage's client.")]
    error: Annotated[ErrorDetail, Field(description="As in the errors of /v1.")]


class ErrorForm(NamedTuple):
    """The errors of a shape. write: makes them. model: the type of their bodies. statuses: theirs."""

    write: ErrorShape
    model: type[Any]
    statuses: tuple[int, ...]


STATUSES = (400, 401, 403, 408, 413, 415, 429, 500, 503, 504)
"""The statuses of errors of a shape that answers wrong fields with 400."""
RERANK_ERRORS = ErrorForm(rerank, RerankError, STATUSES)
OUR_ERRORS = ErrorForm(ours, Error, (*STATUSES, 422))


class OurFields(BaseModel):
    """The fields of /v1/score that a request in another server's shape may have. Unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    variant: VariantName | None = Field(None, description="Ours: a variant of `GET /v1/variants`.")
    head_mask: MaskForm | None = Field(None, description="Ours: multiplied onto the variant's own mask.")
    unit: Unit | None = Field(
        None, description="Ours: who is asking, for the assignment to an experiment's arm."
    )
    attributes: Attributes = Field(
        None, description="Ours: what an experiment's `where` may ask for, such as `locale`."
    )


class CompatRequest(OurFields, ABC):
    """A request in another server's shape."""

    known_by: ClassVar[str | None] = None
    """The field whose presence tells this shape from the others at its path."""
    servers: ClassVar[tuple[str, ...]]
    """Whose shape it is."""
    answers: ClassVar[tuple[Any, ...]]
    """The types of its answers."""
    errors: ClassVar[ErrorForm] = RERANK_ERRORS
    names: ClassVar[Mapping[str, str]] = {"titles": "documents"}
    """Their names of our fields, for messages."""

    model: str | None = Field(
        None,
        description="`NAME@VARIANT` names a variant of `GET /v1/variants`. Any other name is taken and "
        "ignored: the service's own model scores.",
    )
    deadline_ms: DeadlineMs = None

    @classmethod
    def shown(cls) -> Any:
        """Return the request that the documentation shows."""
        return cast(dict[str, Any], cls.model_config["json_schema_extra"])["examples"][0]

    @abstractmethod
    def score_request(self) -> ScoreRequest:
        """Return our request; `scoring` makes one with the fields that all shapes share."""

    @abstractmethod
    def answer(self, response: ScoreResponse) -> Any:
        """Return their answer, as JSON values or dataclasses."""

    def headers(self, response: ScoreResponse) -> Mapping[str, str]:  # noqa: ARG002
        """Return the headers that the answer brings besides ours."""
        return {}

    def scoring(self, reading: Mapping[str, Any] | None = None, **texts: Any) -> ScoreRequest:
        """Return our request for `query` and `titles`, or `pairs`, with this request's variant and mask.

        reading: the fields of a DocumentsRequest that say how to read the texts. Raises InvalidRequest.
        """
        ours = {
            "variant": self._variant(),
            "head_mask": self.head_mask,
            "unit": self.unit,
            "attributes": self.attributes,
            "deadline_ms": self.deadline_ms,
        }
        return validated(DocumentsRequest if reading else ScoreRequest, {**texts, **ours, **(reading or {})})

    def _variant(self) -> str | None:
        """Return the variant that `variant` or `model` names."""
        _, at, named = (self.model or "").rpartition("@")
        if not at:
            return self.variant
        if self.variant not in (None, named):
            raise InvalidRequest(f"names the variant {shown(named)}, but variant is another", param="model")
        return named

    def their_name(self, param: str) -> str:
        """Return their name of the field at fault, such as `documents[3]` for `titles[3]`."""
        field = param.partition("[")[0]
        if field == "variant" and self.variant is None:
            return "model"
        return self.names.get(field, field) + param[len(field) :]


async def score_and_answer(request: Post, body: CompatRequest) -> Timed:
    """Score a request in another shape and answer in that shape."""
    try:
        response = await score_charged(request, body.score_request())
    except InvalidRequest as error:
        raise renamed(error, body.their_name) from None
    headers = {**body.headers(response), **degraded_header(response)}
    return Timed(body.answer(response), response.timing_ms, headers)


async def score_charged(request: Post, score_request: ScoreRequest) -> ScoreResponse:
    """Score our request, made of another one, within the limits and the rate of its key."""
    with request.charged(check_score(score_request, request.settings)):
        return await request.backend.score(score_request, request.deadline)


def degraded_header(response: ScoreResponse) -> dict[str, str]:
    """Return the header that tells of a degraded answer in shapes that have no place for it."""
    return {"x-degraded": "true"} if response.degraded else {}


def renamed(error: InvalidRequest, their_name: Callable[[str], str]) -> InvalidRequest:
    """Return the error with the name that `their_name` gives to our name of the field at fault."""
    if error.param is None:
        return error
    sentence = error.message.removeprefix(f"{error.param}: ")
    return InvalidRequest(sentence, param=their_name(error.param))


def by_relevance(results: Sequence[ScoreResult]) -> list[ScoreResult]:
    """Return the results with the highest raw score first; equal ones in the request's order."""
    return sorted(results, key=lambda result: -result.raw_score)


def relevance(result: ScoreResult, *, raw: bool) -> Any:
    """Return a pair's relevance as /v1/score has it: `score`, or on the scale of logits `raw_score`."""
    return result.raw_score if raw else result.score


class ScoredBy(TypedDict):
    """The model, variant and mask that judged the documents: ours, in each answer."""

    model: Annotated[str, Field(description="What scored, as `model` takes it: `NAME@VARIANT`.")]
    head_mask: Annotated[
        HeadMaskInfo, Field(description="Ours: the mask that was applied, the variant's included.")
    ]
    assignment: Annotated[
        Assignment | None, Field(description="Ours: null where no experiment decided the variant.")
    ]
    degraded: Annotated[bool, Field(description="Ours: as in /v1/score, whether the load made it worse.")]


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
