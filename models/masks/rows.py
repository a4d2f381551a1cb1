"""The masks of a batch's rows, as arrays that the network reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from models.masks.head_mask import HeadMask


class UnitSet(NamedTuple):
    """Units of the feed-forward networks that are off: (layers, units) bool. key: equal for equal sets."""

    key: bytes
    off: npt.NDArray[np.bool_]


NO_UNITS_OFF = UnitSet(b"", np.zeros((0, 0), np.bool_))


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The masks of the rows of one batch.

    weights: (rows, layers, heads) float32, or (layers, heads) for all rows; 1 keeps a head, 0 removes it.
        Weights in skipped layers are ignored.
    skipped: (rows, layers) or (layers,) bool like `weights`; None if no row skips a layer.
    units: the distinct sets of units that are off; empty if no row has any. unit_set: (rows,) int64, which of
        them each row has; None if `weights` are for all rows, which then have the only set.
    """

    weights: npt.NDArray[np.float32]
    skipped: npt.NDArray[np.bool_] | None = None
    units: tuple[UnitSet, ...] = ()
    unit_set: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, masks: HeadMask | Sequence[HeadMask]) -> Self | None:
        """Return one mask for all rows, or one for each; None if all of them change nothing."""
        if not isinstance(masks, HeadMask):
            first = masks[0]
            if any(mask is not first for mask in masks):
                return cls._of_each(masks)
            masks = first
        if masks.is_none:
            return None
        units = () if masks.units_off is None else (UnitSet(masks.units_key, masks.units_off),)
        return cls(masks.matrix, _flags(masks) if masks.skipped else None, units)

    @classmethod
    def _of_each(cls, masks: Sequence[HeadMask]) -> Self:
        rows = cls(np.stack([mask.matrix for mask in masks]))
        if any(mask.skipped for mask in masks):
            rows = replace(rows, skipped=np.stack([_flags(mask) for mask in masks]))
        if any(mask.units_off is not None for mask in masks):
            sets: dict[bytes, UnitSet] = {}
            for mask in masks:
                off = mask.units_off
                sets.setdefault(mask.units_key, NO_UNITS_OFF if off is None else UnitSet(mask.units_key, off))
            number = {key: i for i, key in enumerate(sets)}
            chosen = np.array([number[mask.units_key] for mask in masks])
            rows = replace(rows, units=tuple(sets.values()), unit_set=chosen)
        return rows

    def rows(self, index: npt.NDArray[np.int64] | Sequence[int]) -> RowMasks:
        """Return the masks of some rows, in their order."""
        if self.weights.ndim == 2:
            return self
        return RowMasks(
            self.weights[index],
            None if self.skipped is None else self.skipped[index],
            self.units,
            None if self.unit_set is None else self.unit_set[index],
        )

    def computing(self, layer: int) -> npt.NDArray[np.int64] | None:
        """Return the rows that compute a layer, ascending; None if all do."""
        if self.skipped is None:
            return None
        if self.skipped.ndim == 1:
            return np.empty(0, np.int64) if self.skipped[layer] else None
        skipping = self.skipped[:, layer]
        return np.flatnonzero(~skipping) if skipping.any() else None

    def heads(self, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the heads that are flagged in some row that computes their layer, (layers, heads).

        flags: shaped like `weights`, such as `weights != 0` for the heads that some row needs.
        """
        if self.skipped is not None:
            flags &= ~self.skipped[..., None]
        return np.any(flags, axis=0) if flags.ndim == 3 else flags

    def units_on(
        self, layer: int, count: int, rows: npt.NDArray[np.int64] | None
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return the units of a layer that are on, (sets, count), for each set of some rows (None: all rows),
        and which of the sets each of these rows has."""
        sets, set_of_row = np.zeros(1, np.int64), np.zeros(1, np.int64)
        if self.unit_set is not None:
            chosen = self.unit_set if rows is None else self.unit_set[rows]
            sets, set_of_row = np.unique(chosen, return_inverse=True)
        on = np.ones((len(sets), count), np.bool_)
        for row, number in zip(on, sets, strict=True):
            units = self.units[number]
            if units.key:
                row[units.off[layer, :count]] = False
        return on, set_of_row


Masks = npt.NDArray[np.float32] | RowMasks | None
"""What a network takes: weights of heads alone as in `RowMasks.weights`, or whole masks; None: all on."""


def rows_of(masks: Masks, index: npt.NDArray[np.int64] | Sequence[int]) -> Masks:
    """Return the masks of some rows, in their order."""
    if isinstance(masks, np.ndarray):
        return masks[index] if masks.ndim == 3 else masks
    return None if masks is None else masks.rows(index)


def _flags(mask: HeadMask) -> npt.NDArray[np.bool_]:
    """Return the layers that a mask skips, (layers,) bool."""
    flags = np.zeros(mask.layers, np.bool_)
    flags[list(mask.skipped)] = True
    return flags
