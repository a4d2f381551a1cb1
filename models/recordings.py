"""Forward passes recorded as CUDA graphs: one launch instead of some two hundred, which for a small batch
take longer than what they start.

A recording is of one shape (see models.packing.filled_size) and one set of live heads. It reads its inputs
from buffers of its own and writes its output into another, so replays take turns, whatever their thread.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

log = logging.getLogger(__name__)

MOST = 128
"""Recordings kept; the one used longest ago goes first. They share one pool of memory."""

MOST_SEEN = 4096
"""Shapes remembered as having come once."""

TOLERANCE = 1e-2
"""How far a recording's first logits may lie from those computed without it, as a share of the largest."""

Compute = Callable[[Sequence[Tensor]], Tensor]
"""The forward pass as a function of its inputs, tensors on the device, whose values it never looks at."""


class Recorder(Protocol):
    """What records a computation on a device."""

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Runs `compute` once, recording it. Returns what repeats it, and the output it then fills anew."""

    def begin(self) -> None:
        """Called before a recording's buffers are touched, after `end` of the replay before."""

    def end(self) -> None:
        """Called when a replay and the reading of its output are under way."""


class CudaRecorder:
    """Records CUDA graphs on one device; replays of different streams wait for each other on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._free = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self, compute: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """As in Recorder. Another thread may go on using the device meanwhile."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream(self._device).synchronize()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = compute()
        return graph.replay, output

    def begin(self) -> None:
        """The current stream goes on when the replay before, on whichever stream, has been read."""
        torch.cuda.current_stream(self._device).wait_event(self._free)

    def end(self) -> None:
        """Marks the place in the current stream that the next replay waits for."""
        self._free.record(torch.cuda.current_stream(self._device))


@dataclass(frozen=True, slots=True)
class _Recording:
    inputs: tuple[Tensor, ...]
    repeat: Callable[[], None]
    output: Tensor

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        for held, given in zip(self.inputs, inputs, strict=True):
            held.copy_(given, non_blocking=True)
        self.repeat()
        return self.output.clone()


class Recordings:
    """Runs forward passes, from a recording where their key has come before.

    A recording whose first output is not what the pass gives without it, or that cannot be made, ends
    recording for good: from then on every pass is computed. most: recordings kept.
    """

    def __init__(self, recorder: Recorder, most: int = MOST) -> None:
        self.most = most
        self.off = False
        self._recorder = recorder
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def run(self, key: Hashable, inputs: Sequence[Tensor], compute: Compute) -> Tensor:
        """The output of `compute(inputs)`.

        key: equal for two calls only where both computations are the same but for the values in the inputs,
        whose shapes and dtypes are then the same.
        """
        if not self.off:
            with self._lock:
                recording = self._kept.get(key)
                if recording is not None:
                    self._kept.move_to_end(key)
                    self._recorder.begin()
                    output = recording.replay(inputs)
                    self._recorder.end()
                    return output
                if key in self._seen:
                    return self._recorded(key, inputs, compute)
                self._seen[key] = None
                if len(self._seen) > MOST_SEEN:
                    self._seen.popitem(last=False)
        return compute(inputs)

    def _recorded(self, key: Hashable, inputs: Sequence[Tensor], compute: Compute) -> Tensor:
        expected = compute(inputs)
        try:
            self._recorder.begin()
            held = tuple(tensor.clone() for tensor in inputs)
            repeat, output = self._recorder.record(lambda: compute(held))
            recording = _Recording(held, repeat, output)
            found = recording.replay(inputs)
            self._recorder.end()
            fits = torch.allclose(found, expected, rtol=0, atol=TOLERANCE * float(expected.abs().max()))
        except RuntimeError as error:
            log.warning("forward passes are not recorded as CUDA graphs: %s", error)
            self.off = True
            return expected
        if not fits:
            log.warning("forward passes are not recorded as CUDA graphs: a replay gave other scores")
            self.off = True
            return expected
        self._kept[key] = recording
        if len(self._kept) > self.most:
            self._kept.popitem(last=False)
        return expected
