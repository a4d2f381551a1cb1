"""Finds which feed-forward units a batch needs, and cuts feed-forward weights down to those.

If all rows that compute a layer have the same units off, the units' rows of the up map (and of the gate) and
their columns of the down map are cut out. Else, and in a deterministic network, the activations of each row's
units that are off are multiplied by 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.masks.rows import RowMasks, UnitSet
from models.ops.torch import Linear, Norm, normed

REMEMBERED_SETS = 64


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Some units of a feed-forward network: up (with the activation), gate if there is one, and down."""

    up: Linear
    down: Linear
    gate: Linear | None = None

    def __call__(
        self,
        x: Tensor,
        residual: Tensor,
        weights: Tensor | None = None,
        which: Tensor | None = None,
        *,
        norm: Norm | None = None,
    ) -> Tensor:
        """Compute down(up(x)·gate(x)) + residual, (T, D); the residual's memory may become the result.

        weights: (n, units), the factors of the units' activations. which: (T,) int64, the row of `weights`
        for each token; None if n is 1. norm: of the sum.
        """
        inner = self.inner(x)
        if weights is not None:
            inner = self.down.weighted(inner, weights, which)
        return self.down(inner, residual=residual, overwrite=True, norm=norm)

    def inner(self, x: Tensor) -> Tensor:
        """Return up(x)·gate(x), the units' activations: (T, D) → (T, units)."""
        return self.up(x) if self.gate is None else self.gate.times(self.up, x)

    @property
    def count(self) -> int:
        """Return the number of units."""
        return len(self.up.bias)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weights."""
        return self.up.nbytes + self.down.nbytes + (0 if self.gate is None else self.gate.nbytes)

    def cut(self, live: Sequence[int]) -> FeedForward:
        """Return the units at the positions `live` (at least one) alone."""
        index = torch.tensor(live, dtype=torch.int64, device=self.up.bias.device)
        gate = None if self.gate is None else self.gate.rows(index)
        return FeedForward(self.up.rows(index), self.down.columns(index), gate)


@dataclass(frozen=True, slots=True)
class NoUnits:
    """A feed-forward network without units: only the bias of the down map remains."""

    bias: Tensor

    def __call__(
        self,
        x: Tensor,  # noqa: ARG002 - as FeedForward
        residual: Tensor,
        weights: Tensor | None = None,  # noqa: ARG002
        which: Tensor | None = None,  # noqa: ARG002
        *,
        norm: Norm | None = None,
    ) -> Tensor:
        """Return the residual and the bias, (T, D), and the norm of that."""
        return normed(residual + self.bias.to(residual.dtype), norm)


class Places(tuple[int, ...]):
    """Positions of units, ascending; the hash is computed once, because there are thousands."""

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class UnitPlans:
    """Says which units of each layer are on. Threads may share it.

    widths: the number of units of each layer.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = widths
        self._on: dict[bytes, list[Places]] = {}

    def sets(
        self, masks: RowMasks, computing: npt.NDArray[np.int64] | None
    ) -> tuple[list[UnitSet], npt.NDArray[np.int64] | None]:
        """Return the distinct sets of the rows that compute a layer, and which of them each row has.

        computing: those rows; None for all. The second value is None if all of them have the one set.
        """
        if masks.unit_set is None:
            return list(masks.units), None
        chosen = masks.unit_set if computing is None else masks.unit_set[computing]
        used, which = np.unique(chosen, return_inverse=True)
        return [masks.units[number] for number in used], None if len(used) == 1 else which

    def on(self, units: UnitSet, layer: int) -> Places | None:
        """Return the positions of a layer's units that are on; None if all are."""
        if not units.key:
            return None
        places = self._on.get(units.key)
        if places is None:
            if len(self._on) >= REMEMBERED_SETS:
                self._on.clear()
            places = [
                Places(np.flatnonzero(~off[:width]).tolist())
                for off, width in zip(units.off, self._widths, strict=True)
            ]
            self._on[units.key] = places
        return None if len(places[layer]) == self._widths[layer] else places[layer]

    def weights(self, sets: Sequence[UnitSet], layer: int) -> npt.NDArray[np.float32]:
        """Return the factors of a layer's units under each set, (sets, units): 1 on, 0 off."""
        weights = np.ones((len(sets), self._widths[layer]), np.float32)
        for row, units in zip(weights, sets, strict=True):
            if units.key:
                row[units.off[layer, : len(row)]] = 0
        return weights
