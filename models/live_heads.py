"""Which heads a batch needs, layer by layer, and attention weights that hold only those.

A head whose weight is 0 in every row of a batch is not computed: its rows of W^Q, W^K, W^V and its columns of
W^O are cut out. Cutting copies weights, so it is done only for sets of heads that come again, and the copies
stay in a bounded cache.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.batch import to_device
from models.checkpoint.config import ModelConfig
from models.ops.torch import Linear, TorchOps

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
    """The attention that one layer computes for one batch.

    attention: the layer's own heads, or a set cut down to the live ones; None if no head is live.
    weights: (B, h) or (1, h) float32 for those heads, on the device; None if all are 1.
    """

    attention: AttentionHeads | None
    weights: Tensor | None = None


class LiveHeads:
    """Chooses what each layer computes. Threads may share it.

    layers: each layer's attention, None if pruning left no head. cuts: whether dead heads may be cut out; a
    deterministic network multiplies them by 0 instead.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[AttentionHeads | None],
        ops: TorchOps,
        *,
        cuts: bool,
    ) -> None:
        self._layers = layers
        self._kept_heads = config.kept_heads
        self._device = ops.device
        self._cuts = cuts
        self._step = max(1, config.num_heads // SLICED_WIDTHS) if ops.device.type == "cpu" else 1
        self.cache = SlicedCache(max_bytes=0, finish=ops.synchronize)
        self.make_room(sliced=1)

    def make_room(self, *, sliced: int) -> None:
        """Let the cache hold whole networks for this many sliced variants, and one more for other masks."""
        attention = sum(layer.nbytes for layer in self._layers if layer is not None)
        self.cache.max_bytes = max(LEAST_CACHE_BYTES, (1 + sliced) * attention)

    def of(self, weights: np.ndarray | None, *, sliced: bool = False) -> list[Live]:
        """Return what each layer computes.

        weights: (rows, layers, heads) or (layers, heads) float32, numbered as in the unpruned model; None for
            all heads on. sliced: the mask belongs to a variant and will come again, so exactly its live heads
            are cut out, at once.
        """
        if weights is None:
            return [Live(layer) for layer in self._layers]
        plans = plan(weights, self._kept_heads, step=1 if sliced else self._step)
        rows = weights if weights.ndim == 3 else weights[None]
        attentions: list[AttentionHeads | None] = []
        scales: dict[int, np.ndarray] = {}
        for number, heads in enumerate(plans):
            attention, places = self._attention(number, heads, sliced=sliced)
            attentions.append(attention)
            if not heads.scaled.isdisjoint(places):
                kept = self._kept_heads[number]
                scales[number] = rows[:, number, [kept[place] for place in places]]
        if not scales:
            return [Live(attention) for attention in attentions]
        moved = to_device(list(scales.values()), self._device, torch.float32)
        on_device = dict(zip(scales, moved, strict=True))
        return [Live(attention, on_device.get(number)) for number, attention in enumerate(attentions)]

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
    """Which heads one layer computes for one batch, as positions among the heads that it holds.

    live: heads that some row needs, and those that they were filled up with, ascending.
    scaled: heads whose weight is not 1 in every row.
    """

    live: tuple[int, ...]
    scaled: frozenset[int]


def plan(weights: np.ndarray, kept_heads: Sequence[tuple[int, ...]], *, step: int = 1) -> list[LayerPlan]:
    """Return which heads each layer computes.

    weights: (rows, layers, heads) or (layers, heads), numbered as in the unpruned model.
    step: the number of live heads is filled up to a multiple of it, with heads that are off.
    """
    rows = weights if weights.ndim == 3 else weights[None]
    live = np.any(rows, axis=0).tolist()  # (layers, heads)
    scaled = np.any(rows != 1, axis=0).tolist()
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


class SlicedCache:
    """A bounded cache of attention weights cut down to a set of live heads. Threads may share it.

    A set is cut when it comes for the second time, if the sets that came in between would not have filled the
    cache. So a mask that comes once copies nothing, and masks that take turns, more of them than the cache
    holds, do not evict each other. The least recently used set is evicted first.
    max_bytes: how much the cached weights may take up together; may change at any time.
    finish: waits for the device, so that other threads' streams may use what this thread's stream has cut.
    """

    def __init__(self, max_bytes: int, finish: Callable[[], None] = lambda: None) -> None:
        self.max_bytes = max_bytes
        self._finish = finish
        self.nbytes = 0
        self._cut: OrderedDict[tuple[int, tuple[int, ...]], AttentionHeads] = OrderedDict()
        self._seen: OrderedDict[tuple[int, tuple[int, ...]], int] = OrderedDict()
        """The sets that came and were not cut, and the bytes that they would take."""
        self._seen_bytes = 0
        self._lock = threading.Lock()

    def get(
        self, layer: int, whole: AttentionHeads, live: tuple[int, ...], *, at_once: bool = False
    ) -> AttentionHeads | None:
        """Return the heads `live` of `layer` alone, or None if it does not pay to cut them yet.

        at_once: it is known that the set will come again.
        """
        with self._lock:
            key = (layer, live)
            if key in self._cut:
                self._cut.move_to_end(key)
                return self._cut[key]
            size = whole.nbytes * len(live) // whole.heads
            if size > self.max_bytes or not (at_once or self._came_lately(key, size)):
                return None
            return self._add(key, whole)

    def _came_lately(self, key: tuple[int, tuple[int, ...]], size: int) -> bool:
        if key in self._seen:
            self._seen_bytes -= self._seen.pop(key)
            return True
        self._seen[key] = size
        self._seen_bytes += size
        while self._seen_bytes > self.max_bytes:
            self._seen_bytes -= self._seen.popitem(last=False)[1]
        return False

    def _add(self, key: tuple[int, tuple[int, ...]], whole: AttentionHeads) -> AttentionHeads:
        cut = whole.cut(key[1])
        self._finish()
        self._cut[key] = cut
        self.nbytes += cut.nbytes
        while self.nbytes > self.max_bytes:
            self.nbytes -= self._cut.popitem(last=False)[1].nbytes
        return cut


def head_rows(heads: Sequence[int], head_size: int) -> Tensor:
    """Return the heads' rows in W^Q, W^K, W^V (columns in W^O), (len(heads)·head_size,) int64."""
    return (torch.tensor(heads, dtype=torch.int64)[:, None] * head_size + torch.arange(head_size)).flatten()
