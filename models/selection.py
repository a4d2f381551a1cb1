"""Chooses what a batch computes of each layer: which attention heads and feed-forward units, or nothing.

A head that is off in every row of a batch is not computed: the layer computes a copy of its weights without
that head's rows of W^Q, W^K, W^V and columns of W^O. The same goes for units, which are off in every row or
in none. Copies stay in a bounded cache. Heads that are off in some rows only are multiplied by 0, and so is
everything that is off in a deterministic network.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from headroom.models.arrays import Bools, Floats32, Ints
from headroom.models.batch import to_device
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.layer import FeedForward, Layer, MultiHeadAttention
from headroom.models.masks.head_mask import RowMasks
from headroom.models.ops.torch import TorchOps

HEAD_COUNTS = 4
"""How many distinct head counts a layer may compute on a CPU for masks of single requests (the full count is
one of them). oneDNN compiles a kernel for every new product shape: 2 to 3 ms, and half a MiB stays."""

MINIMUM_CACHE_BYTES = 64 << 20
"""Minimum cache capacity: many masks of a small model."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The parts of one layer that one batch computes.

    heads: all heads of the layer, or some; None: none. units: likewise.
    head_weights: (B, n) or (1, n) float32 for those n, on the device, whose rows may lie apart; None if all
        are 1.
    unit_weights: (1, n), or for each token that leaves the layer; None likewise.
    """

    heads: MultiHeadAttention | None
    units: FeedForward | None
    head_weights: Tensor | None = None
    unit_weights: Tensor | None = None


class Selector:
    """Chooses what each layer computes. Threads may share it.

    copies: whether weights may be copied without what is off.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        config: ModelConfig,
        ops: TorchOps,
        *,
        copies: bool,
    ) -> None:
        self._layers = layers
        self._everything: Sequence[Chosen | None] = [Chosen(layer.heads, layer.units) for layer in layers]
        self._kept_heads = [np.array(kept, np.int64) for kept in config.kept_heads]
        self._device = ops.device
        self._copies = copies
        self._step = max(1, config.num_heads // HEAD_COUNTS) if ops.device.type == "cpu" else 1
        self.cache = WeightCache(max_bytes=0, finish=ops.synchronize)
        self.make_room(sliced=1)

    def make_room(self, *, sliced: int, unit_masks: int = 0) -> None:
        """Let the cache hold whole networks for this many sliced variants, and one more for other masks.

        unit_masks: how many masks switch units off; the cache may hold as many whole feed-forward networks.
        """
        heads = sum(layer.heads.nbytes for layer in self._layers if layer.heads is not None)
        units = sum(layer.units.nbytes for layer in self._layers)
        self.cache.max_bytes = max(MINIMUM_CACHE_BYTES, (1 + sliced) * heads + unit_masks * units)

    def select(self, masks: RowMasks | None, *, sliced: bool = False) -> Sequence[Chosen | None]:
        """Return what each layer computes, None for a layer that is skipped.

        masks: numbered as in the unpruned model; None for all on. sliced: the mask belongs to a variant and
            will come again, so weights are copied at once, and no head that is off is computed.
        """
        if masks is None:
            return self._everything
        weights = masks.weights.reshape(-1, *masks.weights.shape[-2:])
        minimum = weights.min(0)
        maximum = weights.max(0)
        is_on = (minimum != 0) | (maximum != 0)
        is_weighted = (minimum != 1) | (maximum != 1)
        heads: dict[int, MultiHeadAttention | None] = {}
        weighted: dict[int, Ints] = {}
        for number in range(len(self._layers)):
            if number not in masks.skipped:
                heads[number], computed = self._heads(number, is_on[number], sliced=sliced)
                if is_weighted[number, computed].any():
                    weighted[number] = computed
        head_weights = self._head_weights(weights, weighted)
        chosen = list[Chosen | None]([None] * len(self._layers))
        for number, heads_of_layer in heads.items():
            units, unit_weights = self._units(number, masks.units_off, sliced=sliced)
            chosen[number] = Chosen(heads_of_layer, units, head_weights.get(number), unit_weights)
        return chosen

    def _head_weights(self, weights: Floats32, heads: dict[int, Ints]) -> dict[int, Tensor]:
        """Bring the weights of some layers' heads to the device in one copy.

        weights: (B, layers, heads). heads: the numbers of n heads by layer. Returns (B, n) by layer.
        """
        if not heads:
            return {}
        rows, _, width = weights.shape
        columns = np.concatenate([layer * width + numbers for layer, numbers in heads.items()])
        flat = weights.reshape(rows, -1)
        if len(columns) < flat.shape[1]:
            flat = flat[:, columns]
        (moved,) = to_device([flat], self._device, torch.float32)
        parts = moved.split_with_sizes([len(numbers) for numbers in heads.values()], 1)
        return dict(zip(heads, parts, strict=True))

    def _heads(self, number: int, on: Bools, *, sliced: bool) -> tuple[MultiHeadAttention | None, Ints]:
        """Return the heads that a layer computes, and their numbers. on: (heads,), numbered as in masks."""
        whole = self._layers[number].heads
        kept = self._kept_heads[number]
        computed = on[kept]
        count = int(np.count_nonzero(computed))
        if whole is None or not count:
            return None, kept[:0]
        # Some heads that are off are computed too, so that masks share few head counts.
        added = 0 if sliced else -count % self._step
        if added:
            computed[np.flatnonzero(~computed)[:added]] = True
        if self._copies and count + added < whole.count:
            copy = self.cache.get(number, whole, computed, at_once=sliced)
            if copy is not None:
                return copy, kept[computed]
        return whole, kept

    def _units(
        self, number: int, off: Bools | None, *, sliced: bool
    ) -> tuple[FeedForward | None, Tensor | None]:
        """Return the units that a layer computes, and their weights. off: (layers, units)."""
        whole = self._layers[number].units
        if off is None or not off[number, : whole.count].any():
            return whole, None
        on = ~off[number, : whole.count]
        if self._copies:
            if not on.any():
                return None, None
            copy = self.cache.get(number, whole, on, at_once=sliced)
            if copy is not None:
                return copy, None
        return whole, to_device([on[None]], self._device, torch.float32)[0]


S = TypeVar("S", MultiHeadAttention, FeedForward)

Key: TypeAlias = tuple[int, type, bytes]
"""A set of heads or units of one layer."""


class WeightCache:
    """A bounded cache of copies of some heads or units of a layer. Threads may share it.

    A set is copied when it comes for the second time, if the sets that came in between would not have filled
    the cache. So a mask that comes once copies nothing, and masks that take turns do not evict each other if
    there are more of them than the cache holds. The least recently used set is evicted first.
    max_bytes: of all copies together; may change at any time.
    finish: waits for the device, so that other threads' streams may use what this thread's stream has copied.
    """

    def __init__(self, max_bytes: int, finish: Callable[[], None] = lambda: None) -> None:
        self.max_bytes = max_bytes
        self._finish = finish
        self.nbytes = 0
        self._copies: OrderedDict[Key, MultiHeadAttention | FeedForward] = OrderedDict()
        self._seen: OrderedDict[Key, int] = OrderedDict()
        """The sets that came and were not copied, and the bytes that they would take."""
        self._seen_bytes = 0
        self._in_work: set[Key] = set()
        """The sets that a thread is copying now."""
        self._lock = threading.Lock()

    def get(self, layer: int, whole: S, on: Bools, *, at_once: bool = False) -> S | None:
        """Return a copy of the heads (or units) of `layer` that are on, (count,) bool, or None.

        None means that it does not pay to copy them yet, or that another thread is copying them; this call
        does not wait for it. at_once: the set is known to come again.
        """
        key = (layer, type(whole), on.tobytes())
        with self._lock:
            if key in self._copies:
                self._copies.move_to_end(key)
                return cast(S, self._copies[key])
            size = whole.nbytes * int(np.count_nonzero(on)) // whole.count
            if (
                key in self._in_work
                or size > self.max_bytes
                or not (at_once or self._came_recently(key, size))
            ):
                return None
            self._in_work.add(key)
        try:
            copy = whole.only(np.flatnonzero(on).tolist())
            self._finish()
            with self._lock:
                self._copies[key] = copy
                self.nbytes += copy.nbytes
                while self.nbytes > self.max_bytes:
                    self.nbytes -= self._copies.popitem(last=False)[1].nbytes
        finally:
            with self._lock:
                self._in_work.discard(key)
        return copy

    def _came_recently(self, key: Key, size: int) -> bool:
        if key in self._seen:
            self._seen_bytes -= self._seen.pop(key)
            return True
        self._seen[key] = size
        self._seen_bytes += size
        while self._seen_bytes > self.max_bytes:
            self._seen_bytes -= self._seen.popitem(last=False)[1]
        return False
