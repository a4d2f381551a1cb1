"""Variants in the live config, and the one that stands in for the default while the queue is long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from service.config.cascades import MAX_STAGES, StageConfig, check_stages
from service.experiments.definition.fields import STORABLE, ConfigName

CUSTOM = "custom"
"""Variant name under which metrics count ad hoc masks; no variant may have this name."""

MaskForm = str | dict[str, Any]
"""A head mask in a config: a spec, or one of the mask's JSON forms."""


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class VariantConfig(_Config):
    """A servable: a checkpoint with a mask, or a cascade of such variants."""

    name: ConfigName = Field(description="Name in requests, experiments and metrics; not `custom`.")
    head_mask: MaskForm | None = Field(None, description="Mask. Unset: everything on.")
    sliced: bool = Field(False, description="Cut what is off out of the weights, which saves time.")
    optional: bool = Field(
        False,
        description="Leave the variant out, with a warning, if the model has no mask of that name, or a "
        "cascade one of its stages. It is an error if `default`, an experiment or a cascade needs it.",
    )
    checkpoint: Annotated[str, StringConstraints(min_length=1), STORABLE] | None = Field(
        None, description="Checkpoint directory or hub id (`name@revision`). Unset: the service's own model."
    )
    cascade: tuple[StageConfig, ...] | None = Field(
        None,
        min_length=2,
        max_length=MAX_STAGES,
        strict=False,
        description="Stages, cheapest first: each scores the best titles of the one before it.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == CUSTOM:
            raise ValueError(f"the name {CUSTOM!r} is taken: it stands for masks that callers bring along")
        if self.cascade is not None:
            check_stages(
                self.cascade, head_mask=self.head_mask, sliced=self.sliced, checkpoint=self.checkpoint
            )
            return self
        if self.sliced and self.head_mask is None:
            raise ValueError("sliced needs a head_mask that says which heads to cut out")
        if self.optional and not (isinstance(self.head_mask, str) and self.head_mask.startswith("@")):
            raise ValueError(
                "optional needs a head_mask that is stored with some models, such as '@pruned20'"
            )
        return self


class DegradeConfig(_Config):
    """Brownout: a cheaper variant answers while the queue is long, before requests are refused.

    It concerns requests to score or rank that name neither variant nor mask and are in no experiment.
    """

    above_queue_tokens: int = Field(
        ge=1,
        description="Number of queued tokens of a replica above which the variant answers; less than "
        "`max_queue_tokens`, from which requests are refused.",
    )
    variant: ConfigName = Field(description="The variant that answers then; not the default.")


def check_degrade(degrade: DegradeConfig | None, default: str, variants: Sequence[str]) -> None:
    """Check that the variant of `degrade` is one of these and not the default. Raises ValueError."""
    if degrade is None:
        return
    if degrade.variant not in variants:
        raise ValueError(
            f"degrade.variant: there is no variant {degrade.variant!r}; there are {', '.join(variants)}"
        )
    if degrade.variant == default:
        raise ValueError(f"degrade.variant: {default!r} is the default already; name a cheaper variant")
