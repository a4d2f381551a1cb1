"""Finds what a batch needs of each layer, and cuts attention weights down to the heads that it needs.

A head whose weight is 0 in every row of a batch is not computed: its rows of W^Q, W^K, W^V and its columns of
W^O are cut out (`models.sliced_cache`). Feed-forward units are in `models.live_units`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.batch import to_device
from models.checkpoint.config import ModelConfig
from models.live_units import FeedForward, NoUnits, UnitPlans
from models.masks.rows import Masks, RowMasks
from models.ops.torch import Linear, TorchOps
from models.sliced_cache import SlicedCache

SLICED_WIDTHS = 4
"""How many distinct head counts a layer may be sliced to on a CPU for masks that come and go (the full count
is one of them). oneDNN compiles a kernel for every new product shape: 2 to 3 ms, and half a MiB stays."""

LEAST_CACHE_BYTES = 64 << 20
"""The cache may always hold at least so many bytes: many masks of a small model."""


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """Some heads of one layer: W^Q, W^K and W^V as one map (D → 3·h·d), and W^O (h·d → D)."""

    heads: int
    head_size: int
    query_key_value: Linear
    output: Linear

    @property
    def count(self) -> int:
        """Return the number of heads."""
        return self.heads

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weights."""
        return self.query_key_value.nbytes + self.output.nbytes

    def cut(self, live: Sequence[int]) -> AttentionHeads:
        """Return the heads at the positions `live` (at least one) alone."""
        columns = head_rows(live, self.head_size)
        width = self.heads * self.head_size
        rows = torch.cat([columns + part * width for part in range(3)])
        return AttentionHeads(
            len(live), self.head_size, self.query_key_value.rows(rows), self.output.columns(columns)
        )


@dataclass(frozen=True, slots=True)
class Live:
    """The parts of one layer that one batch computes.

    attention: the layer's own heads, or a set cut down to the live ones; None if no head is live.
    weights: (B, h) or (1, h) float32 for those heads, on the device; None if all are 1.
    units: some of the layer's feed-forward units, or none of them; None: the layer's own.
    unit_weights: (n, units) factors of the units' activations, on the device; None if all are 1.
    unit_rows: (B,) int64, the row of `unit_weights` for each sequence. None if `unit_weights` has one row for
        each sequence, or a single row for all.
    rows: int64, ascending, the sequences of the pack that compute the layer, to which all of the above
        belongs; the others skip it. None: all do.
    """

    attention: AttentionHeads | None
    weights: Tensor | None = None
    units: FeedForward | NoUnits | None = None
    unit_weights: Tensor | None = None
    unit_rows: Tensor | None = None
    rows: npt.NDArray[np.int64] | None = None


class LiveHeads:
    """Chooses what each layer computes: heads, feed-forward units, and of which rows. Threads may share it.

    layers: each layer's attention, None if pruning left no head. units: each layer's feed-forward network.
    cuts: whether heads and units that are off may be cut out; a deterministic network multiplies them by 0
    instead.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[AttentionHeads | None],
        units: Sequence[FeedForward],
        ops: TorchOps,
        *,
        cuts: bool,
    ) -> None:
        self._layers = layers
        self._units = units
        self._kept_heads = config.kept_heads
        self._device = ops.device
        self._cuts = cuts
        self._step = max(1, config.num_heads // SLICED_WIDTHS) if ops.device.type == "cpu" else 1
        self._unit_plans = UnitPlans([layer.count for layer in units])
        self.cache = SlicedCache(max_bytes=0, finish=ops.synchronize)
        self.make_room(sliced=1)

    def make_room(self, *, sliced: int, narrow: int = 0) -> None:
        """Let the cache hold whole networks for this many sliced variants, and one more for other masks.

        narrow: how many masks switch units off; the cache may hold that many whole feed-forward networks too.
        """
        attention = sum(layer.nbytes for layer in self._layers if layer is not None)
        feed_forward = sum(layer.nbytes for layer in self._units)
        self.cache.max_bytes = max(LEAST_CACHE_BYTES, (1 + sliced) * attention + narrow * feed_forward)

    def of(self, masks: Masks, *, sliced: bool = False) -> list[Live]:
        """Return what each layer computes.

        masks: weights as (rows, layers, heads) or (layers, heads) float32, numbered as in the unpruned model;
            or whole masks; None for all on. sliced: the mask belongs to a variant and will come again, so
            exactly its live heads and units are cut out, at once.
        """
        if masks is None:
            return [Live(layer) for layer in self._layers]
        masks = masks if isinstance(masks, RowMasks) else RowMasks(masks)
        lives = self._heads(masks, sliced=sliced)
        if masks.units:
            lives = [self._with_units(n, live, masks, sliced=sliced) for n, live in enumerate(lives)]
        return lives

    def _heads(self, masks: RowMasks, *, sliced: bool) -> list[Live]:
        weights = masks.weights
        plans = plan(weights, self._kept_heads, step=1 if sliced else self._step, skipped=masks.skipped)
        rows = weights if weights.ndim == 3 else weights[None]
        attentions: list[AttentionHeads | None] = []
        computing = [masks.computing(number) for number in range(len(plans))]
        scales: dict[int, np.ndarray] = {}
        for number, heads in enumerate(plans):
            attention, places = self._attention(number, heads, sliced=sliced)
            attentions.append(attention)
            if not heads.scaled.isdisjoint(places):
                kept = self._kept_heads[number]
                scale = rows[:, number, [kept[place] for place in places]]
                chosen = computing[number]
                scales[number] = scale if chosen is None else scale[chosen]
        moved = to_device(list(scales.values()), self._device, torch.float32) if scales else []
        on_device = dict(zip(scales, moved, strict=True))
        return [
            Live(attention, on_device.get(number), rows=computing[number])
            for number, attention in enumerate(attentions)
        ]

    def _with_units(self, number: int, live: Live, masks: RowMasks, *, sliced: bool) -> Live:
        """Return what layer `number` computes, `live`, without the units that are off."""
        if live.rows is not None and not len(live.rows):
            return live
        plans, whole = self._unit_plans, self._units[number]
        sets, which = plans.sets(masks, live.rows)
        on = [plans.on(units, number) for units in sets]
        if all(places is None for places in on):
            return live
        if which is None and self._cuts and (places := on[0]) is not None:
            if not places:
                return replace(live, units=NoUnits(whole.down.bias))
            cut = self.cache.get(number, whole, places, at_once=sliced)
            if cut is not None:
                return replace(live, units=cut)
        (weights,) = to_device([plans.weights(sets, number)], self._device, torch.float32)
        rows = None if which is None else to_device([which], self._device)[0]
        return replace(live, unit_weights=weights, unit_rows=rows)

    def _attention(
        self, number: int, heads: LayerPlan, *, sliced: bool
    ) -> tuple[AttentionHeads | None, Sequence[int]]:
        """Return what layer `number` computes, and the positions in the layer of its heads."""
        whole = self._layers[number]
        if whole is None or not heads.live:
            return None, ()
        cut = None
        if self._cuts and len(heads.live) < whole.heads:
            cut = self.cache.get(number, whole, heads.live, at_once=sliced)
        return (whole, range(whole.heads)) if cut is None else (cut, heads.live)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The heads that one layer computes for one batch, as positions among the heads that it holds.

    live: heads that some row needs, and those that they were filled up with, ascending.
    scaled: heads whose weight is not 1 in every row.
    """

    live: tuple[int, ...]
    scaled: frozenset[int]


def plan(
    weights: np.ndarray,
    kept_heads: Sequence[tuple[int, ...]],
    *,
    step: int = 1,
    skipped: np.ndarray | None = None,
) -> list[LayerPlan]:
    """Return which heads each layer computes.

    weights: (rows, layers, heads) or (layers, heads), numbered as in the unpruned model.
    step: the number of live heads is filled up to a multiple of it, with heads that are off.
    skipped: (rows, layers) or (layers,) bool like `weights`, the layers that do not count; None: all count.
    """
    on, changed = weights != 0, weights != 1
    if skipped is not None:
        on, changed = (flags & ~skipped[..., None] for flags in (on, changed))
    if weights.ndim == 3:
        on, changed = on.any(axis=0), changed.any(axis=0)
    live, scaled = on.tolist(), changed.tolist()  # (layers, heads)
    return [
        LayerPlan(
            _filled([place for place, head in enumerate(kept) if live[layer][head]], len(kept), step),
            frozenset(place for place, head in enumerate(kept) if scaled[layer][head]),
        )
        for layer, kept in enumerate(kept_heads)
    ]


def _filled(live: Sequence[int], held: int, step: int) -> tuple[int, ...]:
    off = (place for place in range(held) if place not in live)
    return tuple(sorted((*live, *itertools.islice(off, -len(live) % step))))


def head_rows(heads: Sequence[int], head_size: int) -> Tensor:
    """Return the heads' rows in W^Q, W^K, W^V (columns in W^O), (len(heads)·head_size,) int64."""
    return (torch.tensor(heads, dtype=torch.int64)[:, None] * head_size + torch.arange(head_size)).flatten()
