"""The shared part of all routes for other people's clients: a request shape, its translation, and its route.

A shape is a pydantic model of the request (`CompatRequest`) with two translations: `score_request` makes our
scoring request of it, `answer` makes their answer of ours. Limits, deadlines and experiments are those of
`POST /v1/score`. `add_compat_route` serves one or more shapes at a path, told apart by their fields. The
shapes of errors are in `service.api.error_shapes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, ClassVar, Union, cast

from fastapi import Body, FastAPI
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from service.api import error_shapes
from service.api.error_shapes import ErrorShape
from service.api.examples import ANSWERS
from service.api.openapi import errors
from service.api.post import Post, PostRoute, Timed, validated
from service.errors import InvalidRequest
from service.experiments.fields import Attributes, Unit
from service.schemas.documents import DocumentsRequest
from service.schemas.limits import check_score
from service.schemas.requests import DeadlineMs, MaskForm, ScoreRequest, VariantName, shown
from service.schemas.responses import Assignment, HeadMaskInfo, ScoreResponse, ScoreResult

STATUSES = (400, 401, 403, 408, 413, 415, 429, 500, 503, 504)
"""The statuses of errors of a shape that answers wrong fields with 400."""


class CompatRequest(BaseModel, ABC):
    """A request in another server's shape. Unknown fields are ignored; ours are taken as extra fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    chosen_by: ClassVar[str | None] = None
    """The field whose presence tells this shape from the others at its path."""
    errors: ClassVar[ErrorShape | None] = None
    """The shape of its errors, if it is not the path's."""
    names: ClassVar[Mapping[str, str]] = {"titles": "documents"}
    """Their names of our fields, for messages."""

    model: str | None = Field(
        None,
        description="`NAME@VARIANT` names a variant of `GET /v1/variants`. Any other name is taken and "
        "ignored: the service's own model scores.",
    )
    variant: VariantName | None = Field(None, description="Ours: a variant of `GET /v1/variants`.")
    head_mask: MaskForm | None = Field(None, description="Ours: multiplied onto the variant's own mask.")
    unit: Unit | None = Field(
        None, description="Ours: who is asking, for the assignment to an experiment's arm."
    )
    attributes: Attributes = Field(
        None, description="Ours: what an experiment's `where` may ask for, such as `locale`."
    )
    deadline_ms: DeadlineMs = None

    @abstractmethod
    def score_request(self) -> ScoreRequest:
        """Return our request; `scoring` makes one with the fields that all shapes share."""

    @abstractmethod
    def answer(self, response: ScoreResponse) -> Any:
        """Return their answer, as JSON values or dataclasses."""

    def headers(self, response: ScoreResponse) -> Mapping[str, str]:  # noqa: ARG002
        """Return the headers that the answer brings besides ours."""
        return {}

    def scoring(self, **texts: Any) -> ScoreRequest:
        """Return our request for `query` and `titles`, or `pairs`, with this request's variant and mask.

        texts: may also hold the other fields of a DocumentsRequest. Raises InvalidRequest.
        """
        return validated(
            DocumentsRequest if "overflow" in texts else ScoreRequest,
            {
                **texts,
                "variant": self._variant(),
                "head_mask": self.head_mask,
                "unit": self.unit,
                "attributes": self.attributes,
                "deadline_ms": self.deadline_ms,
            },
        )

    def _variant(self) -> str | None:
        """Return the variant that `variant` or `model` names."""
        _, at, named = (self.model or "").rpartition("@")
        if not at:
            return self.variant
        if self.variant not in (None, named):
            raise InvalidRequest(f"names the variant {shown(named)}, but variant is another", param="model")
        return named

    def _their_name(self, param: str) -> str:
        """Return their name of the field at fault, such as `documents[3]` for `titles[3]`."""
        field = param.partition("[")[0]
        if field == "variant" and self.variant is None:
            return "model"
        return self.names.get(field, field) + param[len(field) :]

    def in_their_words(self, error: InvalidRequest) -> InvalidRequest:
        """Return the error with their name of the field at fault."""
        return renamed(error, self._their_name)


class CompatRoute(PostRoute):
    """A POST route for one or more shapes, told apart by their fields."""

    shapes: tuple[type[CompatRequest], ...] = ()

    def _checked(self, value: Any, request: Post) -> BaseModel:
        fields = value if isinstance(value, dict) else {}
        shape = next(
            (shape for shape in self.shapes if shape.chosen_by is None or shape.chosen_by in fields),
            self.shapes[-1],
        )
        if shape.errors is not None:
            error_shapes.use(request.scope, shape.errors)
        return validated(shape, value)


def add_compat_route(
    app: FastAPI,
    path: str,
    name: str,
    shapes: Sequence[type[CompatRequest]],
    *,
    answers: Sequence[type[Any]],
    error_model: type[Any],
    example: Any,
    tags: Sequence[str],
    statuses: Sequence[int] = STATUSES,
    description: str = "",
) -> None:
    """Add a route that scores requests of these shapes.

    shapes: the first one whose `chosen_by` is a field of the request counts; the last one has none.
    The rest is for the OpenAPI document. name: the operation's id. answers: the types of its answers, one of
    which is the example. error_model: the type of its errors; statuses: those of its errors.
    """

    async def endpoint(request: Post, body: Any) -> Timed:
        return await score_and_answer(request, body)

    ANSWERS[name] = example
    # FastAPI documents an endpoint from its annotations.
    body = Body(openapi_examples=_examples(shapes))
    endpoint.__annotations__["body"] = Annotated[Union[tuple(shapes)], body]  # noqa: UP007
    route_class = type("Route", (CompatRoute,), {"shapes": tuple(shapes)})
    app.router.add_api_route(
        path,
        endpoint,
        name=name,
        methods=["POST"],
        response_model=Union[tuple(answers)],  # noqa: UP007
        responses=_errors(statuses, error_model),
        tags=list[str | Enum](tags),
        description=description,
        route_class_override=route_class,
    )


def _examples(shapes: Sequence[type[CompatRequest]]) -> dict[str, Any]:
    """Return the requests that the documentation offers, by the shape's name."""
    offered = {}
    for shape in shapes:
        for number, example in enumerate(
            cast(dict[str, Any], shape.model_config["json_schema_extra"])["examples"]
        ):
            name = shape.__name__.removesuffix("Request") + (f" {number + 1}" if number else "")
            offered[name] = {"value": example}
    return offered


def _errors(statuses: Sequence[int], model: type[Any]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` for these statuses of errors."""
    described = errors(*statuses, model=model)
    if InvalidRequest.status not in statuses:
        described[400]["description"] = "The body is not strict JSON, or a field is wrong."
    return described


async def score_and_answer(request: Post, body: CompatRequest) -> Timed:
    """Score a request in another shape and answer in that shape."""
    try:
        score_request = body.score_request()
        check_score(score_request, request.settings)
        with request.charged(score_request.count):
            response = await request.backend.score(score_request, request.deadline)
    except InvalidRequest as error:
        raise body.in_their_words(error) from None
    headers = {**body.headers(response), **degraded_header(response)}
    return Timed(body.answer(response), response.timing_ms, headers)


def degraded_header(response: ScoreResponse) -> Mapping[str, str]:
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


def relevance(result: ScoreResult) -> Any:
    """Return a pair's relevance: `score` of /v1/score."""
    return result.score


def raw_score(result: ScoreResult) -> Any:
    """Return a pair's relevance on the scale of logits: `raw_score` of /v1/score."""
    return result.raw_score


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
