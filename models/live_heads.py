"""Which heads a batch needs, layer by layer, and attention modules that hold only those."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.attention import MultiHeadAttention


@dataclass(frozen=True, slots=True)
class LayerHeads:
    """What one layer computes for one batch. Both are positions among the heads that it holds, ascending.

    live: heads that some row needs, and those that they were filled up with. scaled: heads whose weight is
        not 1 in every row.
    """

    live: tuple[int, ...]
    scaled: tuple[int, ...]


def plan(
    weights: np.ndarray | None, kept_heads: Sequence[tuple[int, ...]], *, step: int = 1
) -> list[LayerHeads]:
    """Which heads are computed, and which multiplied, in each layer.

    weights: (rows, layers, heads) or (layers, heads) float32 in the numbering of the unpruned model,
        None for all on. kept_heads: the heads that each layer still holds.
    step: the live heads' number is filled up to a multiple of it, with heads that are off.
    """
    if weights is None:
        return [LayerHeads(tuple(range(len(kept))), ()) for kept in kept_heads]
    stacked = weights if weights.ndim == 3 else weights[None]
    live = np.any(stacked, axis=0).tolist()  # (layers, heads)
    scaled = np.any(stacked != 1, axis=0).tolist()
    return [
        LayerHeads(
            _filled([place for place, head in enumerate(kept) if live[layer][head]], len(kept), step),
            tuple(place for place, head in enumerate(kept) if scaled[layer][head]),
        )
        for layer, kept in enumerate(kept_heads)
    ]


def _filled(live: Sequence[int], held: int, step: int) -> tuple[int, ...]:
    off = (place for place in range(held) if place not in live)
    return tuple(sorted((*live, *itertools.islice(off, -len(live) % step))))


class SlicedAttention:
    """A bounded cache of attention modules cut down to a set of live heads.

    A set is cut when it comes again soon: before others that would fill the cache came in between. So one-off
    masks copy nothing, and of more masks in turns than the cache holds none drives out another. The least
    recently used goes first. Threads may share it.
    max_bytes: how much the cached modules may hold together; may be set anew at any time.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._modules: OrderedDict[tuple[int, tuple[int, ...]], MultiHeadAttention] = OrderedDict()
        self._seen: OrderedDict[tuple[int, tuple[int, ...]], int] = OrderedDict()
        """Sets that came and were not cut, and the bytes that they would take."""
        self._seen_bytes = 0
        self._lock = threading.Lock()

    def get(
        self, layer: int, whole: MultiHeadAttention, live: tuple[int, ...], *, at_once: bool = False
    ) -> MultiHeadAttention | None:
        """The module of `layer` with only the heads `live`, or None while it does not pay to cut it.

        at_once: it is known that the set will come again and again.
        """
        with self._lock:
            key = (layer, live)
            module = self._modules.get(key)
            if module is not None:
                self._modules.move_to_end(key)
                return module
            size = module_bytes(whole) * len(live) // whole.heads
            if size > self.max_bytes or not (at_once or self._came_lately(key, size)):
                return None
            return self._cut(key, whole)

    def _came_lately(self, key: tuple[int, tuple[int, ...]], size: int) -> bool:
        if key in self._seen:
            self._seen_bytes -= self._seen.pop(key)
            return True
        self._seen[key] = size
        self._seen_bytes += size
        while self._seen_bytes > self.max_bytes:
            self._seen_bytes -= self._seen.popitem(last=False)[1]
        return False

    def _cut(self, key: tuple[int, tuple[int, ...]], whole: MultiHeadAttention) -> MultiHeadAttention:
        module = slice_heads(whole, key[1])
        if module.output.bias.is_cuda:
            torch.cuda.current_stream().synchronize()  # other streams may use it from here on
        self._modules[key] = module
        self.nbytes += module_bytes(module)
        while self.nbytes > self.max_bytes:
            self.nbytes -= module_bytes(self._modules.popitem(last=False)[1])
        return module


def slice_heads(whole: MultiHeadAttention, live: tuple[int, ...]) -> MultiHeadAttention:
    """A module with the heads at the positions `live` (at least one) of `whole`."""
    rows = head_rows(live, whole.head_size)
    width = whole.heads * whole.head_size
    stacked = torch.cat([rows + part * width for part in range(3)])
    return MultiHeadAttention(
        len(live), whole.head_size, whole.query_key_value.rows(stacked), whole.output.columns(rows)
    )


def head_rows(heads: Sequence[int], head_size: int) -> Tensor:
    """Indices, (len(heads)·head_size,) int64, of the heads' rows in W^Q, W^K, W^V and columns in W^O."""
    return (torch.tensor(heads, dtype=torch.int64)[:, None] * head_size + torch.arange(head_size)).flatten()


def module_bytes(module: MultiHeadAttention) -> int:
    """Bytes of an attention module's weights."""
    return module.query_key_value.nbytes + module.output.nbytes
