"""Finds the masks of a config's variants for the shape of a model."""

from __future__ import annotations

from collections.abc import Container, Mapping

from models.errors import InvalidMask
from models.masks.grammar import stored_name
from models.masks.head_mask import HeadMask
from service.config.settings import InvalidConfig, LiveConfig
from service.config.variants import MaskForm, VariantConfig


def resolve_masks(
    config: LiveConfig,
    *,
    layers: int,
    heads: int,
    units: int | None = None,
    stored: Mapping[str, HeadMask] | None = None,
    checkpoint: str | None = None,
) -> dict[str, HeadMask]:
    """Return all named masks of a model: its stored ones, and the config's, which may refer to earlier ones.

    Args:
        layers, heads: the model's shape. units: of each layer's feed-forward network; None: no mask of the
            config may switch units off.
        stored: masks that are stored with the model; a mask of the config with the same name replaces one.
        checkpoint: the model's name in variants; None: the service's own, which each mask of the config must
            fit. Of another model's masks, those must that its variants need; the others are left out.

    Raises:
        InvalidConfig: a mask that must fit does not parse for this shape.
    """
    masks = dict(stored or {})
    of_checkpoint = [variant for variant in config.variants if variant.checkpoint == checkpoint]
    needed = {stored_name(variant.head_mask) for variant in of_checkpoint if not variant.optional}
    left_out: dict[str | None, InvalidConfig] = {}
    for name, form in config.masks.items():
        try:
            masks[name] = _parse(form, f"masks.{name}", layers, heads, masks, units)
        except InvalidConfig as error:
            if checkpoint is None:
                raise
            reason = left_out.get(stored_name(form), error)
            if name in needed:
                raise InvalidConfig(f"{reason} (the checkpoint {checkpoint})") from None
            left_out[name] = reason
            masks.pop(name, None)
    return masks


def resolve_variant(
    config: LiveConfig, variant: VariantConfig, *, layers: int, heads: int, masks: Mapping[str, HeadMask]
) -> HeadMask | None:
    """Return the mask of one of the config's variants on a model of this shape.

    All heads are on if the variant declares no mask, as a cascade never does. Returns None for an optional
    variant whose mask is not in `masks`.

    Raises:
        InvalidConfig: the mask does not parse for this shape, or a needed variant's mask is missing.
    """
    is_stored = stored_name(variant.head_mask) in masks
    if variant.cascade is None and variant.optional and not is_stored:
        if (user := config.user_of(variant.name)) is not None:
            raise InvalidConfig(f"{user} is {variant.name}, but the model has no mask {variant.head_mask}")
        return None
    form = "none" if variant.head_mask is None else variant.head_mask
    place = f"variants[{config.variants.index(variant)}].head_mask"
    return _parse(form, place, layers, heads, masks)


def check_cascade(config: LiveConfig, cascade: VariantConfig, present: Container[str]) -> bool:
    """Return whether a cascade is there: if one of its stages is not among `present`, it is left out.

    Raises InvalidConfig if it is left out but needed.
    """
    missing = [stage.variant for stage in cascade.cascade or () if stage.variant not in present]
    if missing and (user := config.user_of(cascade.name)) is not None:
        raise InvalidConfig(f"{user} is {cascade.name}, whose stage {missing[0]} is left out")
    return not missing


def left_out_because(variant: VariantConfig) -> str:
    """Return why an optional variant is left out."""
    if variant.cascade is not None:
        return "a stage of it is left out"
    return f"the model has no mask {variant.head_mask}"


def _parse(
    form: MaskForm,
    place: str,
    layers: int,
    heads: int,
    masks: Mapping[str, HeadMask],
    units: int | None = None,
) -> HeadMask:
    try:
        return HeadMask.parse(form, layers=layers, heads=heads, units=units, stored=masks)
    except InvalidMask as error:
        raise InvalidConfig(f"{place}: {error}") from None
