"""Variants in the live config: a checkpoint with a mask, or a cascade of variants; and the brownout."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    StringConstraints,
    model_validator,
)

from headroom.service.experiments.definition import ORIGINAL
from headroom.service.fields import STORABLE, WHOLE_NUMBER, ConfigName, ConfigPart

CUSTOM = "custom"
"""Variant name under which metrics count ad hoc masks; no variant may have this name."""

NAMES_TAKEN = {
    CUSTOM: "it stands for masks that callers bring along",
    ORIGINAL: "it stands for the titles in the order in which they came, and is always there",
}

MaskForm = str | dict[str, Any]
"""A head mask in a config: a spec, or one of the mask's JSON forms."""

MAX_STAGES = 8
KEEP_RANGE = "a whole number of titles from 1, or a share between 0 and 1 (both excluded)"


class StageConfig(ConfigPart):
    """One stage of a cascade."""

    variant: ConfigName
    """The variant that scores in this stage; not a cascade."""
    keep: int | float | None = None
    """How many of a query's titles the next stage scores: a number, or a share of this stage's titles,
    rounded up. The last stage has none."""


class VariantConfig(ConfigPart):
    """A servable: a checkpoint with a mask, or a cascade of such variants."""

    name: ConfigName
    """Name in requests, experiments and metrics; not `custom` or `original`."""
    head_mask: MaskForm | None = None
    """Mask. Unset: everything on."""
    sliced: bool = False
    """Cut what is off out of the weights, which saves time."""
    optional: bool = False
    """Leave the variant out, with a warning, if the model has no such mask or network, or a cascade one of
    its stages. It is an error if `default`, an experiment or a cascade needs it."""
    checkpoint: Annotated[str, StringConstraints(min_length=1), STORABLE] | None = None
    """Checkpoint directory, hub id (`name@revision`), or `@NAME`: the smaller network `networks/NAME` beside
    the model's weights. Unset: the service's own model."""
    cascade: tuple[StageConfig, ...] | None = Field(None, min_length=2, max_length=MAX_STAGES, strict=False)
    """Stages, cheapest first: each scores the best titles of the one before it."""

    @model_validator(mode="before")
    @classmethod
    def _not_removed(cls, values: Any) -> Any:
        if isinstance(values, dict) and "label_order" in values:
            raise ValueError(
                "label_order: variants have none any more: write it into the checkpoint's config.json, as "
                '"headroom": {"label_order": […]}'
            )
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name in NAMES_TAKEN:
            raise ValueError(f"the name {self.name!r} is taken: {NAMES_TAKEN[self.name]}")
        if self.cascade is not None:
            for field in ("head_mask", "sliced", "checkpoint"):
                if getattr(self, field):
                    raise ValueError(f"{field}: a cascade has none of its own; its stages' variants have")
            _check_stages(self.cascade)
            return self
        if self.sliced and self.head_mask is None:
            raise ValueError("sliced needs a head_mask that says which heads to cut out")
        named = (self.head_mask, self.checkpoint)
        if self.optional and not any(isinstance(name, str) and name.startswith("@") for name in named):
            raise ValueError(
                "optional needs a head_mask or a checkpoint that lies beside some models' weights, such as "
                "'@pruned20'"
            )
        return self


class DegradeConfig(ConfigPart):
    """Brownout: a cheaper variant answers while the queue is long, before requests are refused.

    It concerns requests to score or rank that name neither variant nor mask and are in no experiment.
    """

    above_queue_tokens: Annotated[int, Field(ge=1), WHOLE_NUMBER]
    """Number of queued tokens of a replica above which the variant answers; less than `max_queue_tokens`,
    from which requests are refused."""
    variant: ConfigName
    """The variant that answers then; not the default."""


def _check_stages(stages: Sequence[StageConfig]) -> None:
    """Check what one cascade says by itself. Raises ValueError, which names the stage."""
    seen: set[str] = set()
    kept: int | None = None
    for stage_index, stage in enumerate(stages):
        place = f"cascade[{stage_index}]"
        if stage.variant in seen:
            raise ValueError(f"{place}.variant: {stage.variant!r} is already an earlier stage")
        seen.add(stage.variant)
        if stage_index == len(stages) - 1:
            if stage.keep is not None:
                raise ValueError(f"{place}.keep: the last stage keeps all of its titles; leave keep out")
        elif not _is_keep(stage.keep):
            raise ValueError(f"{place}.keep: should be {KEEP_RANGE}")
        elif isinstance(stage.keep, int):
            if kept is not None and stage.keep >= kept:
                raise ValueError(
                    f"{place}.keep: {stage.keep} is not fewer than the {kept} that an earlier stage keeps"
                )
            kept = stage.keep


def _is_keep(keep: float | None) -> bool:
    """Return whether this is KEEP_RANGE."""
    if isinstance(keep, int):
        return keep >= 1
    return keep is not None and 0 < keep < 1


def faults_of_cascades(variants: Mapping[str, VariantConfig]) -> Iterator[str]:
    """Yield a sentence for each stage of a cascade that is no variant, or a cascade itself."""
    for variant_index, variant in enumerate(variants.values()):
        for stage_index, stage in enumerate(variant.cascade or ()):
            place = f"variants[{variant_index}].cascade[{stage_index}].variant"
            if stage.variant == ORIGINAL:
                yield f"{place}: {ORIGINAL!r} gives no scores, so it is no stage; name another variant"
            elif stage.variant not in variants:
                known = ", ".join(name for name, each in variants.items() if each.cascade is None)
                yield f"{place}: there is no variant {stage.variant!r}; there are {known}"
            elif variants[stage.variant].cascade is not None:
                yield f"{place}: {stage.variant!r} is a cascade itself; name its stages in its place"


def fault_of_degrade(degrade: DegradeConfig | None, default: str, variants: Sequence[str]) -> str | None:
    """Return why the variant of `degrade` is none of these, or the default; None if it is right."""
    if degrade is None:
        return None
    if degrade.variant not in variants:
        return f"degrade.variant: there is no variant {degrade.variant!r}; there are {', '.join(variants)}"
    if degrade.variant == default:
        return f"degrade.variant: {default!r} is the default already; name a cheaper variant"
    return None
