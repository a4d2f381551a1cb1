"""CUDA graphs: passes of a shape that comes often are captured once, and then launched with one call each.

A pass is over a hundred short kernels. For a few pairs, or with half of the heads cut out, Python takes
longer to launch them than the GPU to compute them (docs/decisions/012-on-a-gpu.md). Small packs are filled up
to few shapes (SMALL_PACK); full batches of query–title pairs have few as well.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from headroom.models.batch import SMALL_PACK, PackedBatch
from headroom.models.device import is_out_of_memory
from headroom.models.errors import first_line
from headroom.models.layer import Layer
from headroom.models.lru import LeastRecentlyUsed
from headroom.models.selection import Selection

log = logging.getLogger(__name__)

CAPACITY = 16
"""Graphs of a thread; the least recently used one is evicted first. They share one pool of memory."""

KNOWN_KEYS = 64
"""A thread counts the passes of at most this many keys that have no graph yet."""

SMALL_COMES = 2
"""A small pack's key is captured at this pass: a capture takes as long as a few passes without a graph."""

LARGE_COMES = 16
"""The same for larger packs, whose graphs save a smaller part of a pass, and whose shapes are many while the
GPU is not busy."""

LONGEST = (64, 128)
"""A graph of a larger pack computes sequences of at most this many tokens. It launches attention for all
sequences as if each had so many, so those of longer ones are not captured."""

PAUSE = 1_000
"""Passes before a thread captures again after memory was full; after each failed capture, twice as many."""

_capturing = threading.Lock()
"""torch captures one graph at a time in a process."""

_failed: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed: torch's allocator may refer to them for longer than their network lives."""


class GraphKey(NamedTuple):
    """GraphKey of a graph: the batch's `shape` and bound of `longest`, and the selection's parts."""

    shape: tuple[int, int]
    longest: int
    parts: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured pass: it reads batch and weights, and writes logits, at fixed addresses."""

    graph: torch.cuda.CUDAGraph
    batch: PackedBatch
    selection: Selection
    logits: Tensor

    def replay(self, batch: PackedBatch, selection: Selection) -> Tensor:
        """Return the logits of another batch of this key."""
        # The caller's answers end before those of the graph, and what follows them in both is the same.
        self.batch.inputs.copy_(batch.inputs)
        if selection.head_weights is not None:
            assert self.selection.head_weights is not None
            rows = len(selection.head_weights)
            ours = self.selection.head_weights
            (ours if rows == 1 else ours[:rows]).copy_(selection.head_weights)
        if selection.unit_weights is not None:
            assert self.selection.unit_weights is not None
            self.selection.unit_weights.copy_(selection.unit_weights)
        self.graph.replay()
        return self.logits


@dataclass(slots=True)
class Counts:
    """Counts of passes in a process. Threads add to it without a lock, so it may miss some.

    captured: graphs. replayed: passes by a graph. without_memory: how often memory was full.
    """

    captured: int = 0
    replayed: int = 0
    without_memory: int = 0


class _OfThread(threading.local):
    """The graphs of one thread, by key, and how often other keys came. Threads never share a graph.

    pause: how many more passes capture nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.pause = 0
        self.pause_of_capture = PAUSE
        self.graphs = LeastRecentlyUsed[GraphKey, Captured]()
        self.comes = LeastRecentlyUsed[GraphKey, int]()
        # torch has 32 streams of each priority and gives them out in turn: with the usual one, this might be
        # the stream on which another thread computes.
        self.stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def wait_for_memory(self, passes: int) -> None:
        """Capture nothing for this many passes, and then in a new pool.

        torch refuses to capture into a pool whose capture failed, or whose graphs are all gone.
        """
        self.pause = max(self.pause, passes)
        self.pool = torch.cuda.graph_pool_handle()

    def capture_failed(self) -> None:
        """Wait for memory, longer each time."""
        self.wait_for_memory(self.pause_of_capture)
        self.pause_of_capture *= 2


class Graphs:
    """Captures and replays passes of a network.

    compute: a method that returns the answers of a batch, (pairs or more, labels); launches the same kernels
        for all `captured` batches of the same shapes and `longest`, and waits for nothing. It is not kept
        alive: its network holds this object, and would otherwise wait for a collection of garbage, with its
        weights and graphs.
    enabled: False after a capture has failed, unless memory was full.
    """

    def __init__(
        self,
        compute: Callable[[PackedBatch, Selection], Tensor],
        layers: Sequence[Layer],
        device: torch.device,
    ) -> None:
        self._method = weakref.WeakMethod(compute)
        self._layers = layers
        self._device = device
        self._of_thread = _OfThread(device)
        self.counts = Counts()
        self.enabled = True

    def _compute(self, batch: PackedBatch, selection: Selection) -> Tensor:
        compute = self._method()
        assert compute is not None, "its network runs this"
        return compute(batch, selection)

    def is_small(self, batch: PackedBatch) -> bool:
        """Return whether the batch is a small pack, whose graph computes all masks alike.

        Nothing should then be cut out for a mask of a single request: the copies gain no time.
        """
        return self.enabled and len(batch.ids) <= SMALL_PACK

    def may_replay(self, batch: PackedBatch) -> bool:
        """Return whether this thread has a graph of a batch of this shape."""
        return any(key.shape == batch.shape for key in self._of_thread.graphs)

    def logits(self, batch: PackedBatch, selection: Selection, *, sliced: bool) -> Tensor | None:
        """Return the logits of a pack's answers, (pairs or more, labels), until this thread's next call.

        None: the caller computes them, because there is no graph.
        sliced: the selection is a sliced variant's. Other selections of copied weights get no graph, which
            would keep the copies alive.
        """
        longest = _longest(batch)
        if longest is None or not self.enabled or not (sliced or self._copies_nothing(selection)):
            return None
        key = GraphKey(batch.shape, longest, _parts(selection))
        thread = self._of_thread
        thread.pause = max(0, thread.pause - 1)
        captured = thread.graphs.get(key)
        if captured is None and self._came_often(key):
            captured = self._captured(batch, selection, longest)
        if captured is None:
            return None
        thread.graphs.put(key, captured, limit=CAPACITY)
        try:
            logits = captured.replay(batch, selection)
        except RuntimeError as error:  # a graph's first launch takes memory
            if not is_out_of_memory(error):
                raise
            thread.graphs.remove(key)
            thread.wait_for_memory(PAUSE)
            self.counts.without_memory += 1
            return None
        self.counts.replayed += 1
        return logits

    def release(self) -> None:
        """Drop this thread's graphs, because a pass without one found no memory."""
        self._of_thread.graphs.clear()
        self._of_thread.wait_for_memory(PAUSE)
        self.counts.without_memory += 1

    def _copies_nothing(self, selection: Selection) -> bool:
        """Return whether layers compute the network's own weights, or are skipped."""
        return all(
            parts is None or (parts.heads is layer.heads and parts.units is layer.units)
            for layer, parts in zip(self._layers, selection.parts, strict=True)
        )

    def _came_often(self, key: GraphKey) -> bool:
        """Count a pass of a key without a graph; return whether the key should be captured."""
        thread = self._of_thread
        comes = (thread.comes.get(key) or 0) + 1
        thread.comes.remove(key)
        if comes >= (SMALL_COMES if key.shape[0] <= SMALL_PACK else LARGE_COMES) and not thread.pause:
            return True
        thread.comes.put(key, comes, limit=KNOWN_KEYS)
        return False

    def _captured(self, batch: PackedBatch, selection: Selection, longest: int) -> Captured | None:
        """Capture a pass; None if that fails, for good unless memory is full."""
        thread = self._of_thread
        stream = torch.cuda.current_stream(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            # The stream's context also brings the thread back to its stream if a capture fails.
            with _capturing, torch.cuda.device(self._device), torch.cuda.stream(stream):
                static = batch.for_capture(longest)
                chosen = _with_own_weights(selection, len(batch.first_token))
                self._compute(static, chosen)  # kernels are compiled and loaded outside the capture
                with torch.cuda.graph(
                    graph, pool=thread.pool, stream=thread.stream, capture_error_mode="thread_local"
                ):
                    logits = self._compute(static, chosen)
        except (RuntimeError, MemoryError) as error:
            _failed.append(graph)
            if _lacks_memory(error):
                thread.capture_failed()
                self.counts.without_memory += 1
                return None
            self.enabled = False
            log.warning(
                "passes are computed without CUDA graphs, because a capture failed: %s", first_line(error)
            )
            return None
        self.counts.captured += 1
        return Captured(graph, static, chosen, logits)


def _longest(batch: PackedBatch) -> int | None:
    """Return the tokens of the longest sequence that a batch's graph computes; None: it gets no graph."""
    if len(batch.ids) <= SMALL_PACK:
        return len(batch.ids)
    return next((longest for longest in LONGEST if batch.longest <= longest), None)


def _parts(selection: Selection) -> tuple[Hashable, ...]:
    """Return what a graph depends on of a selection: the weights of the network, not those of the mask."""
    return tuple(
        parts and (id(parts.heads), id(parts.units), parts.has_head_weights, parts.has_unit_weights)
        for parts in selection.parts
    )


def _lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that it followed, says that memory is full.

    The end of a capture may fail because of what failed inside it.
    """
    while error is not None:
        if is_out_of_memory(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _with_own_weights(selection: Selection, rows: int) -> Selection:
    """Return the same with weights in memory of their own, those of heads for this many sequences."""
    heads = selection.head_weights
    units = selection.unit_weights
    return replace(
        selection,
        head_weights=None if heads is None else heads.new_zeros(rows, heads.shape[1]),
        unit_weights=None if units is None else units.clone(),
    )
