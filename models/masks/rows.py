"""The masks of a batch's rows, as arrays that the network reads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from models.errors import InvalidMask
from models.masks.head_mask import HeadMask


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The masks of the rows of one batch, which skip the same layers and switch the same units off.

    weights: (rows, layers, heads) float32, or (layers, heads) for all rows; 1 keeps a head, 0 removes it.
    skipped, units_off: as in `HeadMask`.
    """

    weights: npt.NDArray[np.float32]
    skipped: tuple[int, ...] = ()
    units_off: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, masks: HeadMask | Sequence[HeadMask]) -> Self | None:
        """Return one mask for all rows, or one for each; None if all of them change nothing.

        Raises ValueError for masks that may not share a batch (`HeadMask.structure`).
        """
        first = masks if isinstance(masks, HeadMask) else masks[0]
        if isinstance(masks, HeadMask) or all(mask is first for mask in masks):
            return None if first.is_none else cls(first.matrix, first.skipped, first.units_off)
        if any(mask.structure != first.structure for mask in masks):
            raise ValueError("the rows of a batch skip other layers, or have other units off")
        matrices = np.concatenate([mask.matrix for mask in masks]).reshape(len(masks), *first.matrix.shape)
        return cls(matrices, first.skipped, first.units_off)


Masks = npt.NDArray[np.float32] | RowMasks | None
"""What a network takes: weights of heads alone as in `RowMasks.weights`, or whole masks; None: all on."""


def rows_of(masks: Masks, index: npt.NDArray[np.int64] | Sequence[int]) -> RowMasks | None:
    """Return the masks of some rows, in their order."""
    if masks is None:
        return None
    masks = RowMasks(masks) if isinstance(masks, np.ndarray) else masks
    return masks if masks.weights.ndim == 2 else replace(masks, weights=masks.weights[index])


def keys_of(masks: Masks, rows: int) -> Sequence[Hashable]:
    """Return a key of each row's mask, equal for equal masks of one batch."""
    weights = masks.weights if isinstance(masks, RowMasks) else masks
    if weights is None or weights.ndim == 2:
        return [None] * rows
    return [row.tobytes() for row in weights]


def check_fits(mask: HeadMask, layers: int, heads: int, units: int) -> None:
    """Raise InvalidMask unless a mask is for a model of this shape. units: of its widest layer."""
    for name, ours, theirs in (("heads", mask.matrix, heads), ("units", mask.units_off, units)):
        if ours is not None and ours.shape != (layers, theirs):
            raise InvalidMask(
                f"the mask is for {ours.shape[0]} layers of {ours.shape[1]} {name}; this model has "
                f"{layers} of {theirs}"
            )


def by_structure(masks: Sequence[HeadMask]) -> list[list[int]]:
    """Return the indices of masks in groups that may share a batch, as `RowMasks.of` takes them."""
    groups: dict[bytes, list[int]] = {}
    for index, mask in enumerate(masks):
        groups.setdefault(mask.structure, []).append(index)
    return list(groups.values())
