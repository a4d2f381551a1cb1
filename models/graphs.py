"""CUDA graphs of small packs: their passes are captured once, and then launched with one call each.

A pass of a few pairs is over a hundred short kernels. Python takes longer to launch them than the GPU to
compute them (docs/decisions/012-on-a-gpu.md). Small packs are filled up to few shapes (SMALL_PACK).
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headroom.models.batch import SMALL_PACK, PackedBatch
from headroom.models.device import is_out_of_memory
from headroom.models.errors import first_line
from headroom.models.layer import Layer
from headroom.models.selection import Chosen

log = logging.getLogger(__name__)

CAPACITY = 16
"""Graphs of a thread; the least recently used one is evicted first. They share one pool of memory."""

PAUSE = 1_000
"""Passes that a thread computes without a graph after a capture found no memory, before it captures again."""

INPUTS = ("ids", "positions", "segments", "row_of_token", "first_token", "offsets")

_capturing = threading.Lock()
"""torch captures one graph at a time in a process."""

Selection = Sequence[Chosen | None]


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured pass: it reads batch and head weights, and writes logits, at fixed addresses."""

    graph: torch.cuda.CUDAGraph
    batch: PackedBatch
    selection: Selection
    logits: Tensor

    def replay(self, batch: PackedBatch, selection: Selection) -> Tensor:
        """Return the logits of another batch of these shapes."""
        for name in INPUTS:
            getattr(self.batch, name).copy_(getattr(batch, name))
        for ours, given in zip(self.selection, selection, strict=True):
            if ours is not None and given is not None and ours.head_weights is not None:
                assert given.head_weights is not None
                ours.head_weights[: len(given.head_weights)].copy_(given.head_weights)
        self.graph.replay()
        return self.logits


class _OfThread(threading.local):
    """The graphs of one thread, by key; None for a key that came once. Threads never share a graph.

    pause: how many more passes capture nothing.
    """

    pause = 0

    def __init__(self, device: torch.device) -> None:
        self.graphs: OrderedDict[Hashable, Captured | None] = OrderedDict()
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()


class Graphs:
    """Captures and replays passes of a network.

    compute: returns the logits of a batch; launches the same kernels for all `captured` batches of the same
        shapes, and waits for nothing.
    enabled: False after a capture has failed, unless memory was full.
    """

    def __init__(
        self,
        compute: Callable[[PackedBatch, Selection], Tensor],
        layers: Sequence[Layer],
        device: torch.device,
    ) -> None:
        self._compute = compute
        self._layers = layers
        self._device = device
        self._of_thread = _OfThread(device)
        self.enabled = True

    def logits(self, batch: PackedBatch, selection: Selection, *, sliced: bool) -> Tensor:
        """Return the logits of a pack in its order, (B or more, labels), until this thread's next call.

        sliced: the selection is a sliced variant's. Other selections of copied weights get no graph, which
        would keep the copies alive.
        """
        key = self._key(batch, selection, sliced) if self.enabled else None
        if key is None:
            return self._compute(batch, selection)
        thread = self._of_thread
        graphs = thread.graphs
        captured: Captured | None = None
        thread.pause = max(0, thread.pause - 1)
        if key in graphs:  # this thread has seen it before
            captured = graphs[key]
            if captured is None and not thread.pause:
                captured = self._captured(batch, selection)
        graphs[key] = captured
        graphs.move_to_end(key)
        if len(graphs) > CAPACITY:
            graphs.popitem(last=False)
        return self._compute(batch, selection) if captured is None else captured.replay(batch, selection)

    def _key(self, batch: PackedBatch, selection: Selection, sliced: bool) -> Hashable | None:
        """Return what a graph depends on; None if none should be captured."""
        if len(batch.ids) > SMALL_PACK:
            return None
        parts = list[Hashable]()
        for layer, chosen in zip(self._layers, selection, strict=True):
            if chosen is None:
                parts.append(None)
                continue
            whole = chosen.heads is layer.heads and chosen.units is layer.units
            if chosen.unit_weights is not None or not (whole or sliced):
                return None
            by_row = None if chosen.head_weights is None else len(chosen.head_weights) > 1
            parts.append((id(chosen.heads), id(chosen.units), by_row))
        return len(batch.ids), len(batch.first_token), *parts

    def _captured(self, batch: PackedBatch, selection: Selection) -> Captured | None:
        """Capture a pass; None if that fails, for good unless memory is full."""
        thread = self._of_thread
        stream = torch.cuda.current_stream(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            # The stream's context also brings the thread back to its stream if a capture fails.
            with _capturing, torch.cuda.device(self._device), torch.cuda.stream(stream):
                inputs = {name: getattr(batch, name).clone() for name in INPUTS}
                static = replace(batch, **inputs, captured=True)
                chosen = [_with_own_weights(one, len(batch.first_token)) for one in selection]
                self._compute(static, chosen)  # kernels are compiled and loaded outside the capture
                with torch.cuda.graph(
                    graph, pool=thread.pool, stream=thread.stream, capture_error_mode="thread_local"
                ):
                    logits = self._compute(static, chosen)
        except RuntimeError as error:
            # The end of a capture may fail because of what failed inside it.
            if is_out_of_memory(error) or isinstance(error.__context__, torch.OutOfMemoryError):
                thread.pause = PAUSE
                return None
            self.enabled = False
            log.warning(
                "passes are computed without CUDA graphs, because a capture failed: %s", first_line(error)
            )
            return None
        return Captured(graph, static, chosen, logits)


def _with_own_weights(chosen: Chosen | None, rows: int) -> Chosen | None:
    """Return the same with weights of heads in memory of its own, for this many rows if they are by row."""
    if chosen is None or chosen.head_weights is None:
        return chosen
    weights = chosen.head_weights
    return replace(chosen, head_weights=weights.new_zeros(rows if len(weights) > 1 else 1, weights.shape[1]))
