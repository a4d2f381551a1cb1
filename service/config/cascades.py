"""Cascades in the live config: a variant whose stages are other variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.experiments.definition.fields import ConfigName

MAX_STAGES = 8
KEEP_RANGE = "a whole number of titles from 1, or a share between 0 and 1 (both excluded)"


def _keep(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("keep", "should be " + KEEP_RANGE)
    if not (value >= 1 if isinstance(value, int) else 0 < value < 1):
        raise PydanticCustomError("keep", "should be " + KEEP_RANGE)
    return value


Keep = Annotated[
    int | float,
    BeforeValidator(_keep),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            ]
        }
    ),
]


class StageConfig(BaseModel):
    """One stage of a cascade."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    variant: ConfigName = Field(description="The variant that scores in this stage; not a cascade.")
    keep: Keep | None = Field(
        None,
        description="How many of a query's titles the next stage scores: a number, or a share of this "
        "stage's titles, rounded up. The last stage has none.",
    )


def check_stages(stages: Sequence[StageConfig], **others: object) -> None:
    """Check what one cascade says by itself. Raises ValueError, which names the stage.

    others: fields that other variants have, and a cascade must not set.
    """
    for field, value in others.items():
        if value:
            raise ValueError(f"{field}: a cascade has none of its own; its stages' variants have")
    seen: set[str] = set()
    kept: int | None = None
    for number, stage in enumerate(stages):
        place = f"cascade[{number}]"
        if stage.variant in seen:
            raise ValueError(f"{place}.variant: {stage.variant!r} is already an earlier stage")
        seen.add(stage.variant)
        if number == len(stages) - 1:
            if stage.keep is not None:
                raise ValueError(f"{place}.keep: the last stage keeps all of its titles; leave keep out")
        elif stage.keep is None:
            raise ValueError(f"{place}.keep is missing: {KEEP_RANGE}")
        elif isinstance(stage.keep, int):
            if kept is not None and stage.keep >= kept:
                raise ValueError(
                    f"{place}.keep: {stage.keep} is not fewer than the {kept} that an earlier stage keeps"
                )
            kept = stage.keep


def check_cascades(variants: Mapping[str, Sequence[StageConfig] | None]) -> None:
    """Check that the stages of all cascades are variants, and no cascades. Raises ValueError.

    variants: by name, in the config's order, the stages of each cascade and None for any other.
    """
    for number, stages in enumerate(variants.values()):
        for index, stage in enumerate(stages or ()):
            place = f"variants[{number}].cascade[{index}].variant"
            if stage.variant not in variants:
                known = ", ".join(name for name, of_it in variants.items() if of_it is None)
                raise ValueError(f"{place}: there is no variant {stage.variant!r}; there are {known}")
            if variants[stage.variant] is not None:
                raise ValueError(
                    f"{place}: {stage.variant!r} is a cascade itself; name its stages in its place"
                )
