"""The shapes of requests, as the API validates and documents them.

pydantic checks types and shapes here; what depends on the operator's limits is checked in `limits`, and
what depends on the model (masks, variants) in `service.scoring`. Answers are in `responses`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from models.checkpoint.chunks import LongTitles, Overflow
from service.experiments.fields import Attributes, Unit

MAX_GRADE = 30
MAX_NAME_CHARS = 64
MAX_SPEC_CHARS = 16_384  # every head of a 24 x 16 model, listed one by one, is under 3,000

_HEADS_SCHEMA = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2},
}
_WEIGHTS_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "array", "minItems": 1, "items": {"type": "number", "minimum": 0, "maximum": 1}},
}


_SKIP_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _one_key(name: str, title: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": title,
        "type": "object",
        "properties": {name: schema, "skip": _SKIP_SCHEMA},
        "required": [name],
        "additionalProperties": False,
    }


MASK_SCHEMA: dict[str, Any] = {
    "description": (
        "Which attention heads to switch off: `none`, `2.3`, `2.3,4.0-5,7.*`, `6-11.*`, `keep:2.3,4.*`, "
        "`random:0.2@7`, `random:0.2@7/6-11.*`, `@name`; which whole layers to skip, alone or in a list: "
        "`skip:3`, `2.3,skip:6-11`; or an object with `off`, `keep` (lists of [layer, head]) or `weights` "
        "(layers × heads numbers in [0, 1]), and `skip` (a list of layers) beside it or alone."
    ),
    "oneOf": [
        {"type": "string", "minLength": 1, "maxLength": MAX_SPEC_CHARS},
        _one_key("off", "HeadsOff", _HEADS_SCHEMA),
        _one_key("keep", "HeadsKept", _HEADS_SCHEMA),
        _one_key("weights", "HeadWeights", _WEIGHTS_SCHEMA),
        _one_key("skip", "LayersSkipped", _SKIP_SCHEMA),
    ],
}


def _mask_form(value: Any) -> str | dict[str, Any]:
    """Check the outer type only: `HeadMask.parse`, which knows the grammar and the model, checks the rest."""
    if isinstance(value, str):
        if len(value) > MAX_SPEC_CHARS:
            raise PydanticCustomError("mask_too_long", f"is longer than {MAX_SPEC_CHARS} characters")
        return value
    if isinstance(value, dict):
        return value
    raise PydanticCustomError("mask_type", "should be a mask spec such as '2.3,4.*' or an object")


MaskForm = Annotated[str | dict[str, Any], PlainValidator(_mask_form), WithJsonSchema(MASK_SCHEMA)]
Text = Annotated[
    str,
    Field(description="Any length; truncated to the model's window (see `overflow`), which the answer says."),
]
Query = Annotated[Text, WithJsonSchema({"type": "string", "minLength": 1, "pattern": r"\S"})]
VariantName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Pair = Annotated[tuple[Query, Text], Strict(False)]  # JSON has no tuples: a list of two strings
DeadlineMs = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
    Field(
        description="Milliseconds from the arrival of the request. Work not begun by then is dropped: 504."
    ),
]


def example(**fields: Any) -> ConfigDict:
    """Return the part of a model's config that shows this request in the documentation."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class Request(BaseModel):
    """A request body: strict types (a number is not a string), no unknown fields, null means absent."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_fields(cls, value: Any) -> Any:
        # One error, not one for each of a million unknown fields.
        if isinstance(value, dict) and len(value) > len(cls.model_fields):
            unknown = next(key for key in value if key not in cls.model_fields)
            return {key: value[key] for key in (*cls.model_fields, unknown) if key in value}
        return value


_QUERY_AND_TITLES: JsonDict = {
    "title": "query and titles",
    "type": "object",
    "required": ["query", "titles"],
    "properties": {
        "query": {"type": "string"},
        "titles": {"type": "array"},
        "pairs": {"type": "null"},
    },
}
_PAIRS: JsonDict = {
    "title": "pairs",
    "type": "object",
    "required": ["pairs"],
    "properties": {
        "query": {"type": "null"},
        "titles": {"type": "null"},
        "pairs": {"type": "array"},
    },
}


class PairsRequest(Request):
    """A request about pairs: a query with titles, or pairs, but not both."""

    query: Query | None = Field(None, description="What was searched for; not blank.")
    titles: Annotated[list[Text], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="The titles to judge; an empty one is allowed."
    )
    pairs: Annotated[list[Pair], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="[query, title] pairs, in place of `query` and `titles`."
    )
    overflow: Overflow = Field(
        "truncate",
        description="What becomes of a title that does not fit into the model's window beside its query. "
        "`truncate`: its beginning is scored. `chunks`: all of it is scored, in chunks that overlap by a "
        "sixth, and the best chunk's scores count; a query longer than half the window is cut to that.",
    )

    @property
    def long_titles(self) -> LongTitles | None:
        """How much to read of titles that do not fit the window. None: truncate them."""
        return None if self.overflow == "truncate" else LongTitles(self.overflow)

    def texts(self) -> list[tuple[str, str]]:
        """Return the (query, title) pairs in request order, from either form."""
        if self.pairs is not None:
            return self.pairs
        return [(self.query or "", title) for title in self.titles or ()]


class ScoreRequest(PairsRequest):
    """Grade how relevant each title is to the query."""

    variant: VariantName | None = Field(None, description="A variant of `GET /v1/variants`.")
    head_mask: MaskForm | None = Field(None, description="Multiplied onto the variant's own mask.")
    unit: Unit | None = Field(None, description="Who is asking, for the assignment to an experiment's arm.")
    attributes: Attributes = Field(
        None, description="What an experiment's `where` may ask for, such as `locale`."
    )
    grades: Annotated[list[Annotated[int, Field(ge=0, le=MAX_GRADE)]], Field(fail_fast=True)] | None = Field(
        None,
        description="How relevant each title is known to be, from 0, where it is: changes no score; an "
        "experiment's shadow comparison then knows the NDCG of each arm.",
    )
    deadline_ms: DeadlineMs = None

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [{"oneOf": [_QUERY_AND_TITLES, _PAIRS]}],
            "examples": [
                {
                    "query": "angle bracket",
                    "titles": ["12-Gauge Angle", "Wood screws"],
                    "head_mask": "2.3,7.*",
                },
                {"pairs": [["angle bracket", "Simpson Strong-Tie 12-Gauge Angle"]], "deadline_ms": 200},
            ],
        }
    )


class CompareRequest(PairsRequest):
    """Score the same pairs under several masks and variants, in the same batches."""

    masks: Annotated[list[MaskForm], Field(fail_fast=True)] = Field(
        default_factory=list, description="One column each, on the default variant."
    )
    variants: Annotated[list[VariantName], Field(fail_fast=True)] = Field(
        default_factory=list, description="One column each, after the masks."
    )
    deadline_ms: DeadlineMs = None

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                {"oneOf": [_QUERY_AND_TITLES, _PAIRS]},
                {
                    "anyOf": [
                        {"required": ["masks"], "properties": {"masks": {"minItems": 1}}},
                        {"required": ["variants"], "properties": {"variants": {"minItems": 1}}},
                    ]
                },
            ],
            "examples": [
                {"query": "angle bracket", "titles": ["12-Gauge Angle"], "masks": ["none", "6-11.*"]},
            ],
        }
    )


class AttentionRequest(Request):
    """Ask for the attention probabilities of chosen heads over one pair."""

    model_config = example(query="angle bracket", title="Simpson 12-Gauge Angle", heads="2.3,4.*")

    query: Query = Field(description="What was searched for; not blank.")
    title: Text
    heads: Annotated[str, Field(min_length=1, max_length=MAX_SPEC_CHARS)] = Field(
        description="The heads to show, as the list form of a mask: `2.3,4.*`."
    )
    variant: VariantName | None = Field(None, description="A variant of `GET /v1/variants`.")
    head_mask: MaskForm | None = Field(None, description="Multiplied onto the variant's own mask.")
    deadline_ms: DeadlineMs = None
