"""The shapes of requests about experiments."""

import contextlib
import hashlib
import math
from datetime import UTC, datetime
from typing import Annotated, Any, Self

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    PlainValidator,
    RootModel,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from headroom.service.experiments.definition import ExperimentConfig, MetricName
from headroom.service.experiments.events import MAX_TEXT, MAX_VALUE, Click, Outcome
from headroom.service.fields import MAX_UNIT_CHARS, STORABLE, WHOLE_NUMBER, Unit
from headroom.service.schemas.requests import Request, example

MAX_OUTCOMES = 1_000
MAX_REASON_CHARS = 500
MAX_INDEX = 1_000_000_000

# The year 2286: later than any clock, and earlier than today in milliseconds, the likeliest mistake.
_LATEST_SECONDS = 10_000_000_000.0


def _time(value: Any) -> float:
    """Return seconds since the epoch, from a number or an ISO 8601 time (RFC 3339 if it names a zone)."""
    seconds = math.nan
    if isinstance(value, str):
        with contextlib.suppress(ValueError, OverflowError):
            seconds = _timestamp(value.upper())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if not 0 <= seconds < _LATEST_SECONDS:
        raise PydanticCustomError(
            "time",
            "should be seconds since 1970, not milliseconds, or a date and time such as 2026-11-20T14:00:00Z",
        )
    return seconds


def _timestamp(text: str) -> float:
    """Return seconds since the epoch.

    Raises ValueError, also for a date alone: it would mean midnight, which is before the day's exposures.
    """
    if len(text) <= len("2026-11-20"):
        raise ValueError(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


Id = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), STORABLE]
Time = Annotated[
    float,
    PlainValidator(_time),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "exclusiveMaximum": _LATEST_SECONDS},
                {"type": "string", "format": "date-time"},
            ]
        }
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=64), STORABLE]
Reason = Annotated[
    str, Field(max_length=MAX_REASON_CHARS, description="Why; kept in the experiment's log."), STORABLE
]


class OutcomeItem(Request):
    """Something that a unit did."""

    experiment: Name
    """The experiment's name in the config."""
    unit: Unit
    """Who did it: the `unit` of the scoring request."""
    metric: MetricName = Field(examples=["click"])
    """One of the experiment's metrics in the config."""
    value: float = Field(ge=-MAX_VALUE, le=MAX_VALUE, allow_inf_nan=False)
    """1 if it happened, 0 if not; or how much."""
    time: Time
    """When: Unix seconds, or an ISO 8601 time (UTC if it names no zone)."""
    id: Id
    """Your own id, one per outcome of the experiment; a repeated id is a duplicate."""
    impression: Id | None = None
    """Of an interleaved list: the `impression` of its answer, or the `query_id` of its request. With
    `index`."""
    index: Annotated[int, Field(ge=0, le=MAX_INDEX), WHOLE_NUMBER] | None = None
    """Of an interleaved list: the clicked title's index in the request."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.impression is None) != (self.index is None):
            missing = "index" if self.index is None else "impression"
            raise ValueError(
                f"{missing}: missing; a click on an interleaved list has `impression` and `index`"
            )
        return self

    def event(self) -> Outcome | Click:
        """Return the outcome, or the click on an interleaved list, as it is recorded."""
        fields = self.model_dump()
        impression = fields.pop("impression")
        if impression is not None:
            return Click(**fields, list_id=impression)
        return Outcome(**{name: fields[name] for name in Outcome.__slots__})


class OutcomesRequest(Request):
    """Outcomes of exposed units, in any order. They may come late, and more than once."""

    model_config = example(
        outcomes=[
            {
                "experiment": "prune20",
                "unit": "user-123",
                "metric": "click",
                "value": 1,
                "time": "2026-11-20T14:00:00Z",
                "id": "click-98765",
            }
        ]
    )

    outcomes: Annotated[list[OutcomeItem], Field(min_length=1, max_length=MAX_OUTCOMES, fail_fast=True)]
    """In any order, of any experiment."""


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_ObjectId = Annotated[
    str,
    Field(max_length=MAX_TEXT),
    STORABLE,
    BeforeValidator(_text_of_number),
    WithJsonSchema({"anyOf": [{"type": "string", "maxLength": MAX_TEXT}, {"type": "integer"}]}),
]


class _UbiPart(BaseModel):
    """A part of a User Behavior Insights event; fields that are not read may hold anything."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, use_attribute_docstrings=True)


class UbiPosition(_UbiPart):
    """The place where the object stood."""

    ordinal: Annotated[int, Field(ge=-MAX_INDEX, le=MAX_INDEX), WHOLE_NUMBER] | None = None
    """Rank, from 1."""


class UbiObject(_UbiPart):
    """The object that the user acted on."""

    object_id: _ObjectId | None = None
    """One of the `ids` of the scoring request."""


class UbiAttributes(_UbiPart):
    """The details of an event."""

    position: UbiPosition | None = None
    """Where the object stood."""
    object: UbiObject | None = None
    """What the user acted on."""


class UbiEvent(_UbiPart):
    """An event as User Behavior Insights 1.3 defines it. Other fields are ignored."""

    action_name: Annotated[str, Field(min_length=1, max_length=MAX_TEXT), STORABLE]
    """What the user did: a metric of the experiment, such as `click`."""
    query_id: Annotated[str, Field(max_length=MAX_TEXT), STORABLE] | None = None
    """The `impression` of the answer (`x-impression`), or the `query_id` of the request."""
    client_id: Annotated[str, Field(max_length=MAX_UNIT_CHARS), STORABLE] | None = None
    """Who: the `unit` of the scoring request."""
    timestamp: Time
    """When: an ISO 8601 time (UTC if it names no zone)."""
    event_attributes: UbiAttributes | None = None
    """The details."""
    object: UbiObject | None = None
    """What the user acted on, if not in the details."""

    def event(self) -> Click:
        """Return the click as it is recorded. The same event again has the same id."""
        attributes = self.event_attributes or UbiAttributes()
        rank = None if attributes.position is None else attributes.position.ordinal
        ids = [part.object_id for part in (attributes.object, self.object) if part is not None]
        object_id = next((each for each in ids if each is not None), None)
        parts = [self.query_id, self.client_id, self.action_name, rank, object_id, self.timestamp]
        return Click(
            experiment="",
            id=f"ubi-{hashlib.sha256(orjson.dumps(parts)).hexdigest()[:32]}",
            unit=self.client_id or "",
            metric=self.action_name,
            list_id=self.query_id or "",
            value=1.0,
            time=self.timestamp,
            rank=rank,
            object_id=object_id,
        )


class UbiRequest(Request):
    """Events of User Behavior Insights 1.3: `{"events": [...]}`, or the array alone."""

    model_config = example(
        events=[
            {
                "action_name": "click",
                "query_id": "5f0c8a1b2d3e4f60718293a4b5c6d7e8",
                "client_id": "user-123",
                "timestamp": "2026-11-20T14:00:00Z",
                "event_attributes": {"object": {"object_id": "sku-1"}, "position": {"ordinal": 2}},
            }
        ]
    )

    events: Annotated[list[UbiEvent], Field(min_length=1, max_length=MAX_OUTCOMES, fail_fast=True)]
    """In any order."""

    @model_validator(mode="before")
    @classmethod
    def _array(cls, value: Any) -> Any:
        return {"events": value} if isinstance(value, list) else value


_Entry = Annotated[
    dict[str, Any],
    GetPydanticSchema(None, lambda _, handler: handler(ExperimentConfig.__pydantic_core_schema__)),
]


class StartRequest(RootModel[_Entry]):
    """An experiment: the same fields as an entry of `experiments` in the config.

    Its content is checked off the event loop, as `ExperimentConfig`.
    """

    model_config = example(
        name="prune20-again",
        salt="2026-12",
        arms=[{"name": "control", "variant": "full"}, {"name": "pruned", "variant": "pruned20"}],
        traffic=0.5,
        metrics=[{"name": "click", "kind": "proportion", "margin": 0.02}],
    )


class RampRequest(Request):
    """Set the share of each arm's units that take part from now on, in place of the config's."""

    model_config = example(traffic=0.5, reason="no harm in the first week")

    traffic: float = Field(ge=0, le=1)
    """The share."""
    reason: Reason = ""


class StopRequest(Request):
    """Give everybody the default variant from now on."""

    model_config = example(reason="a bug in the page")

    reason: Reason = ""


class RollbackRequest(Request):
    """Give everybody the default variant again after a ship."""

    model_config = example(reason="more complaints")

    reason: Reason = ""


class ShipRequest(Request):
    """Give everybody this arm's variant from now on."""

    model_config = example(arm="pruned", reason="good enough, and faster")

    arm: Name
    """One of the experiment's arms; the control is allowed."""
    reason: Reason = ""
