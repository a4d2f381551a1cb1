"""What an experiment is, as the live config declares it; what cannot be meant is refused in one sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    PlainValidator,
    Strict,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from service.experiments.definition.buckets import BUCKETS, exposed_buckets, least_traffic, ranges
from service.experiments.definition.metric import Metric

LAYER_SALT = "layer"
"""The salt of the slots: units are spread over them by SHA-256("layer:{unit}")."""

MAX_UNIT_CHARS = 256
MAX_ATTRIBUTES = 16
MAX_ATTRIBUTE_CHARS = 256

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(duration: str) -> float:
    """`30s`, `15m`, `1.5h` or `7d` in seconds. Raises ValueError."""
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
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise PydanticCustomError("unstorable", "must not hold half of a surrogate pair: it is no character")
    return text


STORABLE_PATTERN = r"^[^\x00]*$"
STORABLE = GetPydanticSchema(
    lambda kind, handler: core_schema.no_info_after_validator_function(_storable, handler(kind)),
    lambda core, handler: handler(core) | {"pattern": STORABLE_PATTERN},
)
"""Marks text that goes into the database, or is compared with what does: both databases must be able to
keep it."""


def _values(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def _attribute(value: Any) -> str | float | bool:
    if isinstance(value, str):
        if len(value) > MAX_ATTRIBUTE_CHARS:
            raise ValueError(f"is longer than {MAX_ATTRIBUTE_CHARS} characters")
        return _storable(value)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return value
    raise ValueError("should be a string, a finite number or a bool")


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]
Salt = Annotated[str, StringConstraints(min_length=1, max_length=128), STORABLE]
Unit = Annotated[str, StringConstraints(min_length=1, max_length=MAX_UNIT_CHARS), STORABLE]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Duration = Annotated[str, AfterValidator(_duration)]
AttributeName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=64),
    STORABLE,
    # `allOf`, because pydantic would turn a plain pattern of keys into one that the others need not keep to.
    WithJsonSchema(
        {"type": "string", "minLength": 1, "maxLength": 64, "allOf": [{"pattern": STORABLE_PATTERN}]}
    ),
]
Attribute = Annotated[
    str | float | bool,
    PlainValidator(_attribute),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "maxLength": MAX_ATTRIBUTE_CHARS, "pattern": STORABLE_PATTERN},
                {"type": "number"},
                {"type": "boolean"},
            ]
        }
    ),
]
"""A request's attribute: text, a number or a bool; JSON's types are kept apart."""
_Slot = Annotated[int, Field(ge=0, le=10_000)]


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ArmConfig(_Config):
    """A variant's place in an experiment; `weight` sizes its share of the units."""

    name: Name
    variant: Name
    weight: Annotated[int, Field(ge=1, le=1_000_000)] = 1


class Guardrails(_Config):
    """What takes an arm back to control by itself; null switches one off.

    error_rate: share of the arm's requests that its variant fails (they are answered by the control's).
    p99_ms: limit of the arm's 99th percentile of the time from admission to result.
    score_shift: population stability index of the arm's scores against the control's.
    srm: p-value of the sample-ratio check under which the whole experiment goes back to control.
    window, min_requests: what is looked at, and from how many requests of an arm on a replica.
    """

    error_rate: Annotated[float, Field(gt=0, lt=1)] | None = 0.02
    p99_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    score_shift: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    srm: Annotated[float, Field(gt=0, le=0.05)] | None = 0.001
    window: Duration = "60s"
    min_requests: Annotated[int, Field(ge=10, le=1_000_000)] = 50

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not 5 <= seconds(self.window) <= 3600:
            raise ValueError("window: must be 5s to 1h")
        return self


class HoldoutConfig(_Config):
    """A share of the units that is in no experiment at all, and gets nothing that one has shipped."""

    share: Annotated[float, Field(gt=0, lt=1)]
    salt: Salt


class ExperimentConfig(_Config):
    """One experiment.

    traffic, ramp: where the ramp ends, and the steps before: [[0.01, 1h], [0.05, 1d]] holds 1 % for an hour
        first.
    slots: [x, y) of the 10,000 slots. where: attributes that a request must have. force: arms of listed
        units.
    shadow: share of requests scored under every arm.
    metrics: what the outcomes are analysed for, the primary one first. alpha: of its confidence sequence,
        which
        is narrowest at planned_units.
    """

    name: Name
    salt: Salt
    arms: Annotated[tuple[ArmConfig, ...], Field(min_length=2, max_length=10, strict=False)]
    traffic: Share = 1.0
    slots: Annotated[tuple[_Slot, _Slot], Strict(False)] = (0, 10_000)
    where: dict[
        AttributeName,
        Annotated[
            tuple[Attribute, ...],
            Strict(False),
            BeforeValidator(_values),
            Field(min_length=1, max_length=1000),
        ],
    ] = Field(default_factory=dict, max_length=MAX_ATTRIBUTES)
    force: dict[Unit, Name] = Field(default_factory=dict, max_length=1000)
    shadow: Share = 0.0
    ramp: Annotated[
        tuple[Annotated[tuple[Share, Duration], Strict(False)], ...], Field(max_length=50, strict=False)
    ] = ()
    guardrails: Guardrails = Guardrails()
    metrics: Annotated[tuple[Metric, ...], Field(max_length=50, strict=False)] = ()
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    planned_units: Annotated[int, Field(ge=1)] = 10_000

    @property
    def control(self) -> str:
        """The arm that the others are measured against and fall back to: `control`, else the first."""
        names = [arm.name for arm in self.arms]
        return "control" if "control" in names else names[0]

    @property
    def treatments(self) -> tuple[str, ...]:
        """The arms but the control."""
        return tuple(arm.name for arm in self.arms if arm.name != self.control)

    @property
    def outcome_metrics(self) -> frozenset[str]:
        """The names of the outcomes that its metrics are computed from; empty where it declares none."""
        return frozenset(name for metric in self.metrics for name in metric.sources)

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """The range [a, b) of buckets of each arm."""
        names = [arm.name for arm in self.arms]
        return dict(zip(names, ranges([arm.weight for arm in self.arms]), strict=True))

    @property
    def shares(self) -> dict[str, float]:
        """Each arm's share of the buckets."""
        return {arm: (end - start) / BUCKETS for arm, (start, end) in self.spans.items()}

    def exposed(self, traffic: float, rolled_back: Collection[str] = ()) -> dict[str, int]:
        """How many buckets of each arm a share of traffic exposes; arms that are rolled back are left out."""
        return {
            arm: exposed_buckets(end - start, traffic)
            for arm, (start, end) in self.spans.items()
            if arm not in rolled_back
        }

    def unexposed(self, traffic: float, rolled_back: Collection[str] = ()) -> str | None:
        """Why a share of traffic is too small, as the end of a sentence; None where all arms get units."""
        if traffic == 0:
            return None  # nobody is in the experiment: shadow only
        empty = [arm for arm, buckets in self.exposed(traffic, rolled_back).items() if not buckets]
        if not empty:
            return None
        spans = self.spans
        least = max(least_traffic(spans[arm][1] - spans[arm][0]) for arm in empty)
        arms = ", ".join(map(repr, empty))
        return (
            f"a traffic of {traffic:g} exposes none of the {BUCKETS:,} buckets of the arm {arms}; "
            f"the least is {least:g}, or give the arm more weight"
        )

    def variant_of(self, arm: str) -> str:
        """The variant of an arm. Raises KeyError where there is no such arm."""
        for candidate in self.arms:
            if candidate.name == arm:
                return candidate.variant
        raise KeyError(arm)

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [arm.name for arm in self.arms]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"arms: two are called {name!r}")
        for name, (start, end) in self.spans.items():
            if start == end:
                raise ValueError(f"arms: {name!r} gets none of the {BUCKETS:,} buckets; give it more weight")
        start, end = self.slots
        if start >= end:
            raise ValueError(f"slots: [{start}, {end}) is empty; give [x, y) with 0 <= x < y <= 10000")
        for unit, arm in self.force.items():
            if arm not in names:
                raise ValueError(f"force.{unit}: there is no arm {arm!r}; there are {', '.join(names)}")
        metrics = [metric.name for metric in self.metrics]
        for metric in metrics:
            if metrics.count(metric) > 1:
                raise ValueError(f"metrics: two are called {metric!r}")
        steps = [step for step, _ in self.ramp] + [self.traffic]
        if any(later < earlier for earlier, later in pairwise(steps)):
            raise ValueError(
                f"ramp: the shares must rise, and end at traffic: {', '.join(f'{step:g}' for step in steps)}"
            )
        places = [*(f"ramp[{number}]" for number in range(len(self.ramp))), "traffic"]
        for place, step in zip(places, steps, strict=True):
            if (why := self.unexposed(step)) is not None:
                raise ValueError(f"{place}: {why}")
        return self


def check_together(
    experiments: Sequence[ExperimentConfig], holdout: HoldoutConfig | None, variants: Sequence[str]
) -> None:
    """What no experiment can be checked for alone. Raises ValueError, which names the place."""
    salts = {LAYER_SALT: "the slots"}
    if holdout is not None:
        _claim(salts, holdout.salt, "holdout", "the holdout")
    names: set[str] = set()
    taken: list[tuple[tuple[int, int], str]] = []
    for number, experiment in enumerate(experiments):
        place = f"experiments[{number}]"
        if experiment.name in names:
            raise ValueError(f"{place}.name: two experiments are called {experiment.name!r}")
        names.add(experiment.name)
        _claim(salts, experiment.salt, place, f"the experiment {experiment.name!r}")
        for index, arm in enumerate(experiment.arms):
            if arm.variant not in variants:
                raise ValueError(
                    f"{place}.arms[{index}].variant: there is no variant {arm.variant!r}; "
                    f"there are {', '.join(variants)}"
                )
        for (start, end), other in taken:
            if experiment.slots[0] < end and start < experiment.slots[1]:
                raise ValueError(
                    f"{place}.slots: [{experiment.slots[0]}, {experiment.slots[1]}) overlaps "
                    f"[{start}, {end}) of {other!r}; experiments that run at once need slots of their own"
                )
        taken.append((experiment.slots, experiment.name))


def _claim(salts: dict[str, str], salt: str, place: str, owner: str) -> None:
    """One salt for two purposes would tie one draw to the other."""
    if salt in salts:
        raise ValueError(f"{place}.salt: {salt!r} is the salt of {salts[salt]} already")
    salts[salt] = owner
