"""What a mask leaves of a checkpoint: its heads, feed-forward units and layers.

A unit is one of the inner activations of a layer's feed-forward half: a row of the up map (and of the gate)
and a column of the down map.
"""

import numpy as np

from models.checkpoint.config import ModelConfig
from models.checkpoint.families import FAMILIES
from models.errors import ModelError
from models.masks.head_mask import HeadMask
from models.masks.rows import check_fits

Numbers = tuple[tuple[int, ...], ...]
"""Heads or units by layer of the source, ascending."""


def whole(config: ModelConfig) -> HeadMask:
    """Return the mask that keeps everything that the checkpoint has."""
    heads = np.zeros((config.num_layers, config.num_heads), np.float32)
    for layer, held in enumerate(config.kept_heads):
        heads[layer, list(held)] = 1
    return HeadMask(heads)


def kept_layers(mask: HeadMask) -> tuple[int, ...]:
    """Return the layers that stay, ascending."""
    return tuple(layer for layer in range(mask.layers) if layer not in mask.skipped)


def kept_heads(mask: HeadMask, config: ModelConfig) -> Numbers:
    """Return the heads that stay; none in a layer that goes."""
    return tuple(
        tuple(head for head in held if mask.matrix[layer, head] > 0)
        for layer, held in enumerate(config.kept_heads)
    )


def kept_units(mask: HeadMask, config: ModelConfig) -> Numbers:
    """Return the units that stay; none in a layer that goes."""
    off = mask.units_off
    if off is None:
        off = np.zeros((config.num_layers, config.intermediate_size), np.bool_)
    return tuple(
        () if layer in mask.skipped else tuple(np.flatnonzero(~off[layer, :width]).tolist())
        for layer, width in enumerate(config.widths)
    )


def check(mask: HeadMask, config: ModelConfig) -> None:
    """Raise InvalidMask if a mask is for a model of another shape; ModelError if no head would be left, or if
    the family cannot be without one of the layers."""
    check_fits(mask, config.num_layers, config.num_heads, config.intermediate_size)
    if not any(kept_heads(mask, config)):
        raise ModelError(
            f"that would remove all {sum(map(len, config.kept_heads))} heads, and without any every pair "
            "gets the same score; keep at least one"
        )
    FAMILIES[config.family].check_removable(mask.skipped)
