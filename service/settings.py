"""What an operator sets: once at the start (`Settings`, from the environment) or live (`LiveConfig`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from models.errors import InvalidMask
from models.head_mask import HeadMask
from service.api_keys import ApiKey, parse_api_keys
from service.experiments.assignment import Assigner
from service.experiments.config import STORABLE, ExperimentConfig, HoldoutConfig, check_together

CUSTOM = "custom"
"""The variant name under which ad hoc masks are counted; no variant may be called so."""


def _keys_of_text(value: Any) -> Any:
    return parse_api_keys(value) if isinstance(value, str) else value


class Settings(BaseSettings):
    """Everything fixed while the process lives; each field is the environment variable `HEADROOM_<NAME>`.

    The limits and their defaults are those of the HTTP contract.
    """

    model_config = SettingsConfigDict(
        env_prefix="HEADROOM_", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    model: str | None = Field(None, description="checkpoint directory or hub id; none: the shipped model")
    device: Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    deterministic: bool = Field(False, description="fp32 scores bitwise the same alone and in any batch")
    tokenizer_cache_size: int = Field(65_536, ge=0, description="texts whose tokens are kept")

    max_pairs: int = Field(1000, ge=1, description="titles or pairs of one request")
    max_columns: int = Field(64, ge=1, description="masks and variants of one compare")
    max_compare_rows: int = Field(4096, ge=1, description="pairs times columns of one compare")
    max_attention_values: int = Field(
        4_000_000, ge=1, description="probabilities of one attention answer: heads times tokens squared"
    )
    max_body_bytes: int = Field(4_000_000, ge=1)
    max_json_depth: int = Field(32, ge=1, le=512)
    body_timeout_s: float = Field(15.0, gt=0, allow_inf_nan=False, description="for the whole body to arrive")
    request_timeout_s: float = Field(60.0, gt=0, allow_inf_nan=False, description="from request to answer")

    max_batch_tokens: int | None = Field(None, ge=1, description="none: 1,024 on a CPU, 16,384 on CUDA")
    max_queue_tokens: int | None = Field(None, ge=1, description="none: 64 full batches")
    max_queue_s: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="longest wait to admit, at the measured token rate"
    )
    max_age_s: float = Field(
        0.5, gt=0, allow_inf_nan=False, description="what is older gets a quarter of the device in any case"
    )
    drain_timeout_s: float = Field(30.0, ge=0, allow_inf_nan=False, description="to answer what was accepted")

    database_url: str | None = Field(
        None,
        repr=False,
        description="of the experiments' database; none: a SQLite file in the user's state directory",
    )
    retention_days: float | None = Field(
        180.0, gt=0, allow_inf_nan=False, description="exposures and outcomes that are older are deleted"
    )

    api_keys: Annotated[tuple[ApiKey, ...], NoDecode, BeforeValidator(_keys_of_text)] = Field(
        (), repr=False, exclude=True, description="KEY[;role=admin][;rate=50], comma-separated; none: open"
    )

    def batch_tokens(self, device_type: str) -> int:
        """The scheduler's token budget of one batch on this type of device (`cpu`, `cuda`)."""
        return self.max_batch_tokens or (16_384 if device_type == "cuda" else 1_024)

    def queue_tokens(self, device_type: str) -> int:
        """The number of queued tokens from which new requests get 429."""
        return self.max_queue_tokens or 64 * self.batch_tokens(device_type)


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]
MaskForm = str | dict[str, Any]
"""A head mask as written in a config: the grammar's spec, or one of its JSON forms."""


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class VariantConfig(_Config):
    """A servable: a checkpoint (none: the service's own) with a mask; `sliced` cuts its dead heads out.

    optional: left out, with a warning, where the model served has no mask of that name stored with it. For
    configs that serve several models; a variant that an experiment or `default` names must not be.
    """

    name: Name
    head_mask: MaskForm | None = None
    sliced: bool = False
    optional: bool = False
    checkpoint: Annotated[str, StringConstraints(min_length=1), STORABLE] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == CUSTOM:
            raise ValueError(f"the name {CUSTOM!r} is taken: it stands for masks that callers bring along")
        if self.sliced and self.head_mask is None:
            raise ValueError("sliced needs a head_mask that says which heads to cut out")
        if self.optional and not (isinstance(self.head_mask, str) and self.head_mask.startswith("@")):
            raise ValueError(
                "optional needs a head_mask that is stored with some models, such as '@pruned20'"
            )
        return self


class LiveConfig(_Config):
    """What may change while the service runs; Ray Serve's `user_config`.

    Validation here needs no model; `resolve_masks` checks the masks against one. Both come before a config is
    handed to a replica, because a replica that refuses a config takes the service down.
    """

    masks: dict[Name, MaskForm] = Field(default_factory=dict, description="stored masks, by name")
    variants: tuple[VariantConfig, ...] = Field(
        (VariantConfig(name="full"),), min_length=1, max_length=64, strict=False
    )
    default: Name | None = Field(None, description="the variant of requests that name none; none: the first")
    experiments: tuple[ExperimentConfig, ...] = Field((), max_length=64, strict=False)
    holdout: HoldoutConfig | None = Field(None, description="a share of units that no experiment touches")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            unknown = sorted(str(key) for key in value if key not in cls.model_fields)
            if unknown:
                known = ", ".join(cls.model_fields)
                raise ValueError(f"unknown key {', '.join(unknown)}; this version knows {known}")
        return value

    @field_validator("variants")
    @classmethod
    def _unique(cls, variants: tuple[VariantConfig, ...]) -> tuple[VariantConfig, ...]:
        names = [variant.name for variant in variants]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two variants are called {name!r}")
        return variants

    @model_validator(mode="after")
    def _default_exists(self) -> Self:
        if self.default is not None and self.default not in {variant.name for variant in self.variants}:
            raise ValueError(f"default: there is no variant {self.default!r}")
        return self

    @model_validator(mode="after")
    def _nothing_rests_on_an_optional_variant(self) -> Self:
        needed = {self.default_variant, *(arm.variant for test in self.experiments for arm in test.arms)}
        for variant in self.variants:
            if variant.optional and variant.name in needed:
                raise ValueError(
                    f"variants.{variant.name}: it may be left out (optional: true), so neither requests that "
                    "name no variant nor an experiment's arm can get it"
                )
        return self

    @model_validator(mode="after")
    def _experiments_fit(self) -> Self:
        check_together(self.experiments, self.holdout, [variant.name for variant in self.variants])
        return self

    @property
    def default_variant(self) -> str:
        return self.default or self.variants[0].name

    @cached_property
    def assigner(self) -> Assigner:
        """Who gets which arm under this config."""
        return Assigner(self.experiments, self.holdout)

    @cached_property
    def version(self) -> str:
        """12 hex digits that change with the content: the start of the SHA-256 of its canonical JSON."""
        canonical = orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(canonical).hexdigest()[:12]


class InvalidConfig(ValueError):
    """A config that cannot be served; the message names the place and says what is wrong there."""


def resolve_masks(
    config: LiveConfig, *, layers: int, heads: int, stored: Mapping[str, HeadMask] | None = None
) -> dict[str, HeadMask]:
    """All named masks of a model: those stored with it, then the config's, which may refer to earlier ones.

    Args:
        layers, heads: the model's shape.
        stored: masks that came with the model; the config's win where names are the same.

    Raises:
        InvalidConfig: a mask does not parse for this shape.
    """
    masks = dict(stored or {})
    for name, form in config.masks.items():
        masks[name] = _parse(form, f"masks.{name}", layers, heads, masks)
    return masks


def resolve_variant(
    config: LiveConfig, name: str, *, layers: int, heads: int, masks: Mapping[str, HeadMask]
) -> HeadMask | None:
    """The mask of one variant on a model of this shape; all heads on where it declares none.

    None for an optional variant whose mask is not among `masks`.

    Raises:
        InvalidConfig: the mask does not parse for this shape.
        KeyError: there is no such variant.
    """
    for number, variant in enumerate(config.variants):
        if variant.name == name:
            if variant.optional and str(variant.head_mask).removeprefix("@") not in masks:
                return None
            form = "none" if variant.head_mask is None else variant.head_mask
            return _parse(form, f"variants[{number}].head_mask", layers, heads, masks)
    raise KeyError(name)


def _parse(form: MaskForm, place: str, layers: int, heads: int, masks: Mapping[str, HeadMask]) -> HeadMask:
    try:
        return HeadMask.parse(form, layers=layers, heads=heads, stored=masks)
    except InvalidMask as error:
        raise InvalidConfig(f"{place}: {error}") from None
