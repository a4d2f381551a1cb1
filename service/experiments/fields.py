"""The types of an experiment's fields: names, units, shares and durations."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, GetPydanticSchema, StringConstraints
from pydantic_core import PydanticCustomError, core_schema

MAX_UNIT_CHARS = 256

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(duration: str) -> float:
    """Return the seconds of a duration such as `30s`, `15m`, `1.5h` or `7d`. Raises ValueError."""
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise ValueError(f"{duration!r} is no duration; write a number and s, m, h or d, such as 30s or 1.5h")
    return float(match[1]) * _SECONDS[match[2]]


def _duration(text: str) -> str:
    if not seconds(text) > 0:
        raise ValueError("must be longer than 0s")
    return text


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


NAME_PATTERN = r"^[a-z0-9_-]{1,64}$"
ConfigName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Salt = Annotated[str, StringConstraints(min_length=1, max_length=128), STORABLE]
Unit = Annotated[str, StringConstraints(min_length=1, max_length=MAX_UNIT_CHARS), STORABLE]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Duration = Annotated[str, AfterValidator(_duration)]
