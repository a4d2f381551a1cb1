"""Chooses what a batch computes of each layer: which attention heads and feed-forward units, or nothing.

A head that is off in every row of a batch is not computed: the layer computes a copy of its weights without
that head's rows of W^Q, W^K, W^V and columns of W^O. The same goes for units, which are off in every row or
in none. Copies stay in a bounded cache. Heads that are off in some rows only are multiplied by 0, and so is
everything that is off in a deterministic network.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from headroom.models.arrays import Bools, Floats32, Ints
from headroom.models.batch import to_device
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.layer import AttentionHeads, FeedForward, Layer
from headroom.models.masks.head_mask import HeadMask
from headroom.models.ops.torch import MaskPolicy, TorchOps
from headroom.models.weight_cache import WeightCache

MINIMUM_CACHE_BYTES = 64 << 20
"""Minimum cache capacity, in bytes."""

Slicing = Literal["at once", "when repeated", "never"]
"""When the weights of the heads and units that are on are copied, so that the others are not computed.

at once: the mask belongs to a sliced variant and will come again. No head that is off is computed.
when repeated: the mask is a request's own, and is worth a copy if it comes again soon.
never: all heads and units of layers that are not skipped are computed.
"""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The masks of the rows of one batch, which skip the same layers and switch the same units off.

    weights: (masks, layers, heads) float32, or (layers, heads) for all rows; 1 keeps a head, 0 removes it.
    skipped: the layers that are skipped. units_off: (layers, units) bool, True removes a unit; None: none is.
    index: (rows,), the mask of each row; None: row i has mask i.
    """

    weights: Floats32
    skipped: tuple[int, ...] = ()
    units_off: Bools | None = None
    index: Ints | None = None

    @classmethod
    def of(cls, masks: HeadMask | Sequence[HeadMask]) -> Self | None:
        """Return one mask for all rows, or one for each; None if all of them change nothing.

        Raises ValueError for masks that may not share a batch (`HeadMask.structure`).
        """
        of_rows = [masks] if isinstance(masks, HeadMask) else masks
        different = {id(mask): mask for mask in of_rows}
        first = of_rows[0]
        if any(mask.structure != first.structure for mask in different.values()):
            raise ValueError("the rows of a batch skip other layers, or have other units off")
        if all(mask.is_none for mask in different.values()):
            return None
        if len(different) == 1:
            return cls(first.matrix, first.skipped, first.units_off)
        matrices = np.stack([mask.matrix for mask in different.values()])
        number_of = {key: number for number, key in enumerate(different)}
        index = np.array([number_of[id(mask)] for mask in of_rows])
        return cls(matrices, first.skipped, first.units_off, index)


def rows_of(masks: RowMasks | None, index: Ints | Sequence[int]) -> RowMasks | None:
    """Return the masks of some rows, in their order; None: all on."""
    if masks is None or masks.weights.ndim == 2:
        return masks
    of_rows = np.asarray(index) if masks.index is None else masks.index[index]
    used, of_rows = np.unique(of_rows, return_inverse=True)
    return replace(masks, weights=masks.weights[used], index=of_rows)


def keys_of(masks: RowMasks | None, rows: int) -> Iterable[Hashable]:
    """Return a key of each row's mask, equal for equal masks of one batch."""
    if masks is None or masks.weights.ndim == 2:
        return [None] * rows
    of_rows = range(rows) if masks.index is None else masks.index.tolist()
    return (masks.weights[number].tobytes() for number in of_rows)


def by_structure(masks: Sequence[HeadMask]) -> list[list[int]]:
    """Return the indices of masks in groups that may share a batch: of equal `structure`."""
    groups: dict[bytes, list[int]] = {}
    for index, mask in enumerate(masks):
        groups.setdefault(mask.structure, []).append(index)
    return list(groups.values())


@dataclass(frozen=True, slots=True)
class Chosen:
    """The parts of one layer that one batch computes.

    heads: the attention over the chosen heads; None if the layer computes none.
    units: the feed-forward over the chosen units; None if the layer computes none.
    head_weights: (B, n) or (1, n) float32 for the n chosen heads, on the device; its rows need not be
        contiguous. None if all weights are 1.
    unit_weights: (1, n), or (tokens that leave the layer, n); None if all weights are 1.
    """

    heads: AttentionHeads | None
    units: FeedForward | None
    head_weights: Tensor | None = None
    unit_weights: Tensor | None = None


class LayerParts(NamedTuple):
    """The parts of one layer, as in `Chosen`, and whether its heads and its units have weights."""

    heads: AttentionHeads | None
    units: FeedForward | None
    has_head_weights: bool = False
    has_unit_weights: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """The parts of each layer that one batch computes.

    Iterating yields what each layer does, None for a layer that is skipped.

    parts: one entry per layer; None for a layer that is skipped.
    head_weights: (B, n) or (1, n) float32, on the device: the weights of the n heads that have any, layer by
        layer; None if no head has a weight.
    unit_weights: (1, n) float32, on the device: the weights of the n units that have any, layer by layer;
        None if no unit has a weight.
    """

    parts: Sequence[LayerParts | None]
    head_weights: Tensor | None = None
    unit_weights: Tensor | None = None

    def __iter__(self) -> Iterator[Chosen | None]:
        first_head = 0
        first_unit = 0
        for parts in self.parts:
            if parts is None:
                yield None
                continue
            head_weights: Tensor | None = None
            unit_weights: Tensor | None = None
            if parts.has_head_weights:
                assert parts.heads is not None
                assert self.head_weights is not None
                head_weights = self.head_weights.narrow(1, first_head, parts.heads.count)
                first_head += parts.heads.count
            if parts.has_unit_weights:
                assert parts.units is not None
                assert self.unit_weights is not None
                unit_weights = self.unit_weights.narrow(1, first_unit, parts.units.count)
                first_unit += parts.units.count
            yield Chosen(parts.heads, parts.units, head_weights, unit_weights)


class Selector:
    """Chooses what each layer computes. Threads may share it."""

    def __init__(
        self,
        layers: Sequence[Layer],
        config: ModelConfig,
        ops: TorchOps,
        policy: MaskPolicy,
    ) -> None:
        self._layers = layers
        self._everything = Selection([LayerParts(layer.heads, layer.units) for layer in layers])
        self._kept_heads = [np.array(kept, np.int64) for kept in config.kept_heads]
        self._device = ops.device
        self._policy = policy
        counts = config.num_heads if policy.head_counts is None else policy.head_counts
        self._step = max(1, config.num_heads // counts)
        self.cache = WeightCache(max_bytes=0, finish=ops.synchronize)
        self.make_room(sliced=1)

    def make_room(self, *, sliced: int, unit_masks: int = 0) -> None:
        """Let the cache hold whole networks for this many sliced variants, and one more for other masks.

        unit_masks: how many masks switch units off; the cache may hold as many whole feed-forward networks.
        """
        heads = sum(layer.heads.nbytes for layer in self._layers if layer.heads is not None)
        units = sum(layer.units.nbytes for layer in self._layers)
        self.cache.max_bytes = max(MINIMUM_CACHE_BYTES, (1 + sliced) * heads + unit_masks * units)

    def select(
        self, masks: RowMasks | None, order: Ints | None = None, slicing: Slicing = "when repeated"
    ) -> Selection:
        """Return what each layer computes.

        masks: numbered as in the unpruned model; None for all on. order: the row of each sequence of the
            pack; default: they are in the order of the rows.
        """
        if masks is None:
            return self._everything
        weights = masks.weights.reshape(-1, *masks.weights.shape[-2:])
        is_on = (weights.min(0) != 0) | (weights.max(0) != 0)
        layers = [number for number in range(len(self._layers)) if number not in masks.skipped]
        heads = {n: self._heads(n, is_on[n], slicing) for n in layers}
        units = {n: self._units(n, masks.units_off, slicing) for n in layers}
        columns = self._weighted_columns(weights, {n: numbers for n, (_, numbers) in heads.items()})
        head_weights, unit_weights = self._on_device(
            weights.reshape(len(weights), -1),
            list(columns.values()),
            _mask_of_sequence(masks, order),
            [on for _, on in units.values() if on is not None],
        )
        parts = list[LayerParts | None]([None] * len(self._layers))
        for number in layers:
            units_of_layer, on = units[number]
            parts[number] = LayerParts(heads[number][0], units_of_layer, number in columns, on is not None)
        return Selection(parts, head_weights, unit_weights)

    def _weighted_columns(self, weights: Floats32, computed: dict[int, Ints]) -> dict[int, Ints]:
        """Return the columns of each layer's heads in flattened masks, if any of these has a weight but 1.

        weights: (masks, layers, heads). computed: the numbers of the heads that each layer computes.
        """
        is_weighted = (weights.min(0) != 1) | (weights.max(0) != 1)
        layers = [number for number, heads in computed.items() if is_weighted[number, heads].any()]
        if layers and self._policy.in_graphs:
            layers = [number for number, heads in computed.items() if len(heads)]
        return {number: number * weights.shape[2] + computed[number] for number in layers}

    def _on_device(
        self,
        weights: Floats32,
        columns: Sequence[Ints],
        index: Ints | None,
        units_on: Sequence[Bools],
    ) -> tuple[Tensor | None, Tensor | None]:
        """Bring the weights of heads and units to the device in one copy; return them as in `Selection`.

        weights: (masks, n). columns: of the heads that have weights, by layer.
        index: (B,), the index of each sequence's mask; None: sequence i has mask i, or there is one mask.
        units_on: (units,) for each layer whose units have weights.
        """
        arrays = list[np.ndarray]()
        if columns:
            chosen = np.concatenate(columns)
            of_heads = weights if len(chosen) == weights.shape[1] else weights[:, chosen]
            if index is not None and not self._policy.gathers:
                of_heads = of_heads[index]
                index = None
            arrays.append(of_heads)
            if index is not None:
                arrays.append(index.astype(np.int32).view(np.float32))  # its bits
        if units_on:
            arrays.append(np.concatenate(units_on)[None])
        if not arrays:
            return None, None
        moved = to_device(arrays, self._device, torch.float32)
        unit_weights = moved.pop() if units_on else None
        if not columns:
            return None, unit_weights
        if index is None:
            return moved[0], unit_weights
        return moved[0].index_select(0, moved[1].view(torch.int32)), unit_weights

    def _heads(self, number: int, on: Bools, slicing: Slicing) -> tuple[AttentionHeads | None, Ints]:
        """Return the heads that a layer computes, and their numbers. on: (heads,), numbered as in masks."""
        heads = self._layers[number].heads
        kept = self._kept_heads[number]
        if heads is None or slicing == "never":
            return heads, kept
        computed = on[kept]
        count = int(np.count_nonzero(computed))
        if not count:
            return None, kept[:0]
        # Some heads that are off are computed too, so that masks share few head counts.
        added = 0 if slicing == "at once" else -count % self._step
        if added:
            computed[np.flatnonzero(~computed)[:added]] = True
        if self._policy.slices and count + added < heads.count:
            copy = self.cache.get(number, heads, computed, at_once=slicing == "at once")
            if copy is not None:
                return copy, kept[computed]
        return heads, kept

    def _units(
        self, number: int, off: Bools | None, slicing: Slicing
    ) -> tuple[FeedForward | None, Bools | None]:
        """Return the units that a layer computes, and which of them are on; None: all.

        off: (layers, units).
        """
        units = self._layers[number].units
        if off is None or not off[number, : units.count].any():
            return units, None
        on = ~off[number, : units.count]
        if self._policy.slices and slicing != "never":
            if not on.any():
                return None, None
            copy = self.cache.get(number, units, on, at_once=slicing == "at once")
            if copy is not None:
                return copy, None
        return units, on


def _mask_of_sequence(masks: RowMasks, order: Ints | None) -> Ints | None:
    """Return the index of each sequence's mask; None: sequence i has mask i, or there is one mask."""
    if masks.weights.ndim == 2 or len(masks.weights) == 1:
        return None
    if masks.index is None:
        return order
    return masks.index if order is None else masks.index[order]
