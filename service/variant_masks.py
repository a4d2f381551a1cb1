"""Finds the masks of a config's variants for the shape of a model."""

from __future__ import annotations

from collections.abc import Mapping

from models.errors import InvalidMask
from models.head_mask import HeadMask
from service.settings import InvalidConfig, LiveConfig, MaskForm


def resolve_masks(
    config: LiveConfig,
    *,
    layers: int,
    heads: int,
    units: int | None = None,
    stored: Mapping[str, HeadMask] | None = None,
) -> dict[str, HeadMask]:
    """Return all named masks of a model: its stored ones, and the config's, which may refer to earlier ones.

    Args:
        layers, heads: the model's shape. units: of each layer's feed-forward network; None: no mask of the
            config may switch units off.
        stored: masks that are stored with the model; a mask of the config with the same name replaces one.

    Raises:
        InvalidConfig: a mask does not parse for this shape.
    """
    masks = dict(stored or {})
    for name, form in config.masks.items():
        masks[name] = _parse(form, f"masks.{name}", layers, heads, masks, units)
    return masks


def resolve_variant(
    config: LiveConfig, name: str, *, layers: int, heads: int, masks: Mapping[str, HeadMask]
) -> HeadMask | None:
    """Return the mask of one variant on a model of this shape, with all heads on if it declares none.

    Returns None for an optional variant whose mask is not in `masks`.

    Raises:
        InvalidConfig: the mask does not parse for this shape, or a needed variant's mask is missing.
        KeyError: there is no such variant.
    """
    for number, variant in enumerate(config.variants):
        if variant.name == name:
            if variant.optional and str(variant.head_mask).removeprefix("@") not in masks:
                if (user := config.user_of(name)) is not None:
                    raise InvalidConfig(f"{user} is {name}, but the model has no mask {variant.head_mask}")
                return None
            form = "none" if variant.head_mask is None else variant.head_mask
            return _parse(form, f"variants[{number}].head_mask", layers, heads, masks)
    raise KeyError(name)


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
