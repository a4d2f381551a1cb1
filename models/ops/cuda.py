"""The network's operators on a GPU: a variable-length attention kernel, and passes replayed as CUDA graphs.

A pass of a small batch launches some two hundred kernels, which takes longer than running them; a CUDA graph
launches them all at once. A graph belongs to one shape of pack (`models.batch.filled_size`) and one set of
live heads. It reads its inputs from buffers of its own and writes its output into another one, so replays
take turns, whatever their thread.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from models.batch import PackedBatch
from models.ops.torch import HeadWeights, Pass, TorchOps, rotated

log = logging.getLogger(__name__)

MAX_GRAPHS = 128
"""So many graphs are kept; the least recently used is evicted first. They share one pool of memory."""

MAX_SEEN = 4096
"""So many shapes are remembered after their first pass."""

MAX_GRAPH_TOKENS = 8192
"""A pack of more tokens is never captured: its kernels run longer than launching them takes."""

TOLERANCE = 1e-2
"""How far the logits of a graph's first replay may lie from the computed ones, as a share of the largest."""

Compute = Callable[[Sequence[Tensor]], Tensor]
"""A forward pass as a function of its input tensors; it must not look at their values on the host."""


class CudaOps(TorchOps):
    """One GPU in half precision."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.graphs = GraphCache(GraphCapture(device))

    def attention(
        self,
        projected: Tensor,
        batch: PackedBatch,
        heads: int,
        head_weights: Tensor | None = None,
        *,
        first_only: bool = False,
        rotation: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Attend as `TorchOps.attention` does, by Flash Attention over the whole pack."""
        parts = projected.view(projected.shape[0], 3, heads, -1)  # (T, 3, h, d)
        if rotation is not None:
            parts = rotated(parts, rotation[batch.positions])
        query, key, value = parts.unbind(1)
        longest = batch.longest
        sides = (-1, -1) if window is None else (window, window)
        context = varlen_attn(
            query, key, value, batch.offsets, batch.offsets, longest, longest, window_size=sides
        )
        assert isinstance(context, Tensor)
        if head_weights is not None:
            weights = head_weights if len(head_weights) == 1 else head_weights[batch.row_of_token]
            context.mul_(weights[..., None])
        context = context.flatten(1)
        return context[batch.first_token] if first_only else context

    def run(self, compute: Pass, batch: PackedBatch, weights: HeadWeights, key: Hashable) -> Tensor:
        """Return `compute(batch, weights)`, or the same from a CUDA graph of this shape and key."""
        if batch.ids.shape[0] > MAX_GRAPH_TOKENS:
            return compute(batch, weights)
        rows = batch.first_token.shape[0]
        filled = [
            weight if weight is None or len(weight) == 1 else F.pad(weight, (0, 0, 0, rows - len(weight)))
            for weight in weights
        ]
        packed = len(batch.tensors)

        def of_inputs(inputs: Sequence[Tensor]) -> Tensor:
            own = iter(inputs[packed:])
            held = [None if weight is None else next(own) for weight in filled]
            return compute(batch.with_tensors(inputs[:packed]), held)

        inputs = (*batch.tensors, *(weight for weight in filled if weight is not None))
        shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        masked = tuple(weight is None for weight in filled)
        return self.graphs.run((shapes, batch.longest, masked, key), inputs, of_inputs)


class Capture(Protocol):
    """An object that captures a computation on a device as a graph."""

    def capture(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Run `compute` once and capture it. Returns what replays it, and the output that a replay fills."""

    def begin(self) -> None:
        """Prepare a replay: called after the previous `end`, before a graph's buffers are touched."""

    def end(self) -> None:
        """Finish a replay: called once it and the reading of its output are queued."""


class GraphCapture:
    """Captures CUDA graphs on one device; replays on different streams wait for each other there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._free = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def capture(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Capture as `Capture` says. Other threads may use the device meanwhile."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream(self._device).synchronize()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = compute()
        return graph.replay, output

    def begin(self) -> None:
        """Let the current stream wait until the previous replay's output, on any stream, has been read."""
        torch.cuda.current_stream(self._device).wait_event(self._free)

    def end(self) -> None:
        """Mark the point in the current stream that the next replay waits for."""
        self._free.record(torch.cuda.current_stream(self._device))


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: tuple[Tensor, ...]
    launch: Callable[[], None]
    output: Tensor

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
        self.launch()
        return self.output.clone()


class GraphCache:
    """Runs forward passes, from a graph if their key has come before. Threads may share it.

    If a graph cannot be captured, or its first replay differs from the pass, `off` is set and every later
    pass is computed. size: how many graphs are kept.
    """

    def __init__(self, capture: Capture, size: int = MAX_GRAPHS) -> None:
        self.size = size
        self.off = False
        self._capture = capture
        self._lock = threading.Lock()
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, key: Hashable, inputs: Sequence[Tensor], compute: Compute) -> Tensor:
        """Return `compute(inputs)`.

        key: equal for two calls only if their computations differ in nothing but the inputs' values; their
        shapes and dtypes are then the same.
        """
        if not self.off:
            with self._lock:
                graph = self._graphs.get(key)
                if graph is not None:
                    self._graphs.move_to_end(key)
                    self._capture.begin()
                    output = graph.replay(inputs)
                    self._capture.end()
                    return output
                if key in self._seen:
                    return self._captured(key, inputs, compute)
                self._seen[key] = None
                if len(self._seen) > MAX_SEEN:
                    self._seen.popitem(last=False)
        return compute(inputs)

    def _captured(self, key: Hashable, inputs: Sequence[Tensor], compute: Compute) -> Tensor:
        expected = compute(inputs)
        try:
            self._capture.begin()
            own = tuple(tensor.clone() for tensor in inputs)
            launch, output = self._capture.capture(lambda: compute(own))
            graph = _Graph(own, launch, output)
            replayed = graph.replay(inputs)
            self._capture.end()
            agree = torch.allclose(replayed, expected, rtol=0, atol=TOLERANCE * float(expected.abs().max()))
        except RuntimeError as error:
            log.warning("forward passes are not recorded as CUDA graphs: %s", error)
            self.off = True
            return expected
        if not agree:
            log.warning("forward passes are not recorded as CUDA graphs: a replay gave other scores")
            self.off = True
            return expected
        self._graphs[key] = graph
        if len(self._graphs) > self.size:
            self._graphs.popitem(last=False)
        return expected
