"""The heads, feed-forward units and layers of a checkpoint that stay, with their weights.

A unit is one of the inner activations of a layer's feed-forward half: a row of the up map (and of the gate)
and a column of the down map.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from models.checkpoint.config import ModelConfig
from models.checkpoint.families import FAMILIES
from models.errors import ModelError
from models.masks.head_mask import HeadMask

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Structure:
    """The weights in [0, 1] that multiply each part's output; a part of weight 0 goes.

    heads: (layers, heads), numbered as before pruning. units: (layers, units of the widest layer), 0 or 1;
    what is beyond a layer's own width is ignored. skipped: the layers that go whole: what enters them passes
    through.
    """

    heads: Floats
    units: Floats
    skipped: frozenset[int] = frozenset()

    @classmethod
    def whole(cls, config: ModelConfig) -> Self:
        """Return the structure that keeps everything."""
        heads = np.ones((config.num_layers, config.num_heads), np.float32)
        return cls(heads, np.ones((config.num_layers, max(config.widths)), np.float32))

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the layers that stay, ascending."""
        return tuple(layer for layer in range(len(self.heads)) if layer not in self.skipped)

    def mask(self, config: ModelConfig) -> HeadMask:
        """Return the run-time mask of a structure whose weights are 0 or 1; other weights become 1."""
        heads = np.zeros_like(self.heads)
        for layer, kept in enumerate(self.kept_heads(config)):
            heads[layer, list(kept)] = 1
        beyond = np.arange(self.units.shape[1]) >= np.array(config.widths)[:, None]
        return HeadMask(heads, tuple(sorted(self.skipped)), (self.units == 0) & ~beyond)

    def kept_heads(self, config: ModelConfig) -> tuple[tuple[int, ...], ...]:
        """Return the heads that stay, by layer of the source; none in a layer that goes."""
        return tuple(
            tuple(head for head in held if layer not in self.skipped and self.heads[layer, head] > 0)
            for layer, held in enumerate(config.kept_heads)
        )

    def kept_units(self, config: ModelConfig) -> tuple[tuple[int, ...], ...]:
        """Return the units that stay, by layer of the source; none in a layer that goes."""
        return tuple(
            ()
            if layer in self.skipped
            else tuple(int(unit) for unit in np.flatnonzero(self.units[layer, :width]))
            for layer, width in enumerate(config.widths)
        )


def check(structure: Structure, config: ModelConfig) -> None:
    """Raise ModelError if no head would be left, or if the family cannot be without one of the layers."""
    if not any(structure.kept_heads(config)):
        raise ModelError(
            f"that would remove all {sum(map(len, config.kept_heads))} heads, and without any every pair "
            "gets the same score; keep at least one"
        )
    FAMILIES[config.family].check_removable(structure.skipped)
