"""Parts of a checkpoint that a mask may switch off for good."""

import numpy as np

from models.checkpoint.config import ModelConfig
from models.checkpoint.families import FAMILIES
from models.errors import ModelError
from models.masks.head_mask import HeadMask
from models.masks.rows import check_fits


def whole(config: ModelConfig) -> HeadMask:
    """Return the mask that keeps everything that the checkpoint has."""
    heads = np.zeros((config.num_layers, config.num_heads), np.float32)
    for layer, held in enumerate(config.kept_heads):
        heads[layer, list(held)] = 1
    return HeadMask(heads)


def check(mask: HeadMask, config: ModelConfig) -> None:
    """Raise InvalidMask if a mask is for a model of another shape; ModelError if no head would be left, or if
    the family cannot be without one of the layers."""
    check_fits(mask, config.num_layers, config.num_heads, config.intermediate_size)
    if not any(config.heads_kept(mask)):
        raise ModelError(
            f"that would remove all {sum(map(len, config.kept_heads))} heads, and without any every pair "
            "gets the same score; keep at least one"
        )
    FAMILIES[config.family].check_removable(mask.skipped)
