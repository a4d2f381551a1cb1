"""Finds the masks of a config's variants for the shape of a model."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headroom.models.checkpoint.hub import has_network
from headroom.models.errors import InvalidMask
from headroom.models.masks.grammar import stored_name
from headroom.models.masks.head_mask import HeadMask
from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.config.variants import MaskForm, VariantConfig

if TYPE_CHECKING:
    from headroom.models.checkpoint.config import ModelConfig

Masks = dict[str, HeadMask]


def refuse(fault: InvalidConfig) -> None:
    """Raise the fault."""
    raise fault


def resolve_masks(
    config: LiveConfig,
    model: ModelConfig,
    stored: Mapping[str, HeadMask],
    checkpoint: str | None = None,
    on_fault: Callable[[InvalidConfig], None] = refuse,
) -> tuple[Masks, Masks]:
    """Return the named masks of a model, and the masks of the config's variants that run it, by their names.

    The named masks are those that are `stored` with the model, and the config's, which may refer to earlier
    ones and replace one of the same name. An optional variant whose mask the model lacks is left out. A
    variant without a mask has everything on.

    checkpoint: the model's name in variants; None: the service's own, which each mask of the config must fit.
        Another model only needs to fit the masks that its variants use; the others are left out.
    on_fault: is called with each mask that must fit and does not parse for this model, unless that is due to
        an earlier one. By default it raises InvalidConfig; if it returns, the mask or variant is left out.
    """
    masks = dict(stored)
    entries = {
        index: entry
        for index, entry in enumerate(config.variants)
        if entry.cascade is None and entry.checkpoint == checkpoint
    }
    needed = {stored_name(entry.head_mask) for entry in entries.values() if not entry.optional}
    misfits: dict[str | None, InvalidConfig] = {}
    for name, form in config.masks.items():
        try:
            masks[name] = _parse(form, f"masks.{name}", model, masks, model.intermediate_size)
        except InvalidConfig as error:
            earlier = misfits.get(stored_name(form))
            misfits[name] = earlier or error
            masks.pop(name, None)
            if checkpoint is None and earlier is None:
                on_fault(error)
            elif checkpoint is not None and name in needed:
                on_fault(InvalidConfig(f"{misfits[name]} (the checkpoint {checkpoint})"))
    variant_masks = {}
    for index, entry in entries.items():
        form = "none" if entry.head_mask is None else entry.head_mask
        if entry.optional and entry.head_mask is not None and stored_name(form) not in masks:
            continue
        if stored_name(form) in misfits:
            continue  # `on_fault` knows
        try:
            variant_masks[entry.name] = _parse(form, f"variants[{index}].head_mask", model, masks)
        except InvalidConfig as error:
            on_fault(error)
    return masks, variant_masks


def lacks_network(entry: VariantConfig, model: Path | None) -> bool:
    """Return whether an optional variant's smaller network (`@NAME`) is not beside the model's weights.

    model: the directory of the service's own checkpoint; None if it has none.
    """
    name = entry.checkpoint or ""
    return entry.optional and name.startswith("@") and not (model and has_network(model, name))


def left_out(config: LiveConfig, present: Container[str]) -> dict[str, str]:
    """Return why variants are left out, by name. A cascade is left out if one of its stages is.

    present: the variants that are there, cascades aside. Raises InvalidConfig if the config needs a variant
    that is left out.
    """
    reasons = {}
    for entry in config.variants:
        missing = [stage.variant for stage in entry.cascade or () if stage.variant not in present]
        if missing:
            reasons[entry.name] = "a stage of it is left out"
            why = f"{entry.name}, whose stage {missing[0]} is left out"
        elif entry.cascade is None and entry.name not in present:
            of_model = (entry.checkpoint or "").startswith("@")
            lacking = f"network {entry.checkpoint}" if of_model else f"mask {entry.head_mask}"
            reasons[entry.name] = f"the model has no {lacking}"
            why = f"{entry.name}, but the model has no {lacking}"
        else:
            continue
        for place, name in _uses(config):
            if name == entry.name:
                raise InvalidConfig(f"{place} is {why}")
    return reasons


def _uses(config: LiveConfig) -> Iterator[tuple[str, str]]:
    """Yield the places in a config that need a variant, and the variant's name."""
    place = "default" if config.default_network == config.default_variant else "variants[0]"
    yield place, config.default_network
    if config.degrade is not None:
        yield "degrade.variant", config.degrade.variant
    for experiment_index, experiment in enumerate(config.experiments):
        for arm_index, arm in enumerate(experiment.arms):
            yield f"experiments[{experiment_index}].arms[{arm_index}].variant", arm.variant
    for variant_index, entry in enumerate(config.variants):
        if not entry.optional:
            for stage_index, stage in enumerate(entry.cascade or ()):
                yield f"variants[{variant_index}].cascade[{stage_index}].variant", stage.variant


def _parse(
    form: MaskForm, place: str, model: ModelConfig, masks: Masks, units: int | None = None
) -> HeadMask:
    try:
        return HeadMask.parse(form, layers=model.num_layers, heads=model.num_heads, units=units, stored=masks)
    except InvalidMask as error:
        raise InvalidConfig(f"{place}: {error}") from None
