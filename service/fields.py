"""The types of the fields of requests and of the live config: names, units, numbers and shares."""

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    StringConstraints,
)
from pydantic_core import PydanticCustomError, core_schema

MAX_UNIT_CHARS = 256


def _storable(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("unstorable", "must not hold a NUL character: PostgreSQL cannot keep it")
    return text


STORABLE = GetPydanticSchema(
    lambda kind, handler: core_schema.no_info_after_validator_function(_storable, handler(kind)),
    lambda core, handler: handler(core) | {"pattern": r"^[^\x00]*$"},
)
"""Marks text that goes into the database, or is compared with such text: both databases must be able to keep
it."""


def _number(sentence: str) -> BeforeValidator:
    """Return a validator of numbers as JSON Schema has them: 5.0 is an integer, and true is no number."""

    def check(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticCustomError("number", sentence)
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return BeforeValidator(check)


NUMBER = _number("should be a number")
WHOLE_NUMBER = _number("should be a whole number")
"""These stand after a field's limits, or the documentation would not know them."""


NAME_PATTERN = r"^[a-z0-9_-]{1,64}$"
ConfigName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Salt = Annotated[str, StringConstraints(min_length=1, max_length=128), STORABLE]
Unit = Annotated[str, StringConstraints(min_length=1, max_length=MAX_UNIT_CHARS), STORABLE]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class ConfigPart(BaseModel):
    """A part of the live config."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
