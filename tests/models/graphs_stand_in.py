"""Stands in for a GPU's CUDA graphs: records a pass's operators, and replays them in the same memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from headroom.models.batch import PackedBatch
from headroom.models.ops.torch import CudaOps, MaskPolicy


class CapturedOps(CudaOps):
    """A GPU's operators that read no length on the host."""

    masking = MaskPolicy(gathers=True, in_graphs=True)

    def attention(
        self, projected: Tensor, batch: PackedBatch, heads: int, weights: Tensor | None, _: object
    ) -> Tensor:
        query, key, value = projected.view(len(projected), 3, heads, -1).permute(1, 2, 0, 3)
        exists = torch.arange(len(projected)) < batch.offsets[-1]
        place = torch.arange(len(projected)) - batch.offsets[batch.row_of_token]
        exists = exists & (place < batch.longest)  # a kernel reads no more of a sequence
        visible = (batch.row_of_token[:, None] == batch.row_of_token) & exists
        scores = query @ key.mT / query.shape[-1] ** 0.5
        context = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value  # (h, T, d)
        context = context.masked_fill(~exists[:, None], 0)
        if weights is not None:
            rows = batch.row_of_token if len(weights) > 1 else torch.zeros_like(batch.row_of_token)
            context = context * weights[rows].T[..., None]
        return batch.leaving(context.transpose(0, 1).flatten(1))


class Recording(TorchDispatchMode):
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        super().__init__()
        self.gpu: Gpu | None = None
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, result))
        return result

    def reset(self) -> None:
        self._calls.clear()

    def replay(self) -> None:
        assert self.gpu is not None
        self.gpu.calls.append("replay")
        if self.gpu.failure == "at a launch":
            raise RuntimeError("CUDA error: out of memory")
        with _disable_current_modes():
            self._replay()

    def _replay(self) -> None:
        for func, args, kwargs, result in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Gpu:
    """Stands in for torch.cuda's graphs.

    failure: where the next captures or launches find no memory. calls: of graphs and events, in their order.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self.captures = 0
        self.calls: list[str] = []

    @property
    def replays(self) -> int:
        """Return how many graphs computed a pass since the last time that this was asked."""
        replays = self.calls.count("replay")
        self.calls.clear()
        return replays

    @contextmanager
    def graph(self, graph: Recording, **_: object) -> Iterator[None]:
        self.captures += 1
        graph.gpu = self
        try:
            with graph:
                yield
                if self.failure == "inside":
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        finally:
            if self.failure == "at the end":
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def event(self) -> "Event":
        return Event(self.calls)


class Event:
    """Stands in for torch.cuda.Event."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def record(self, _: object) -> None:
        self._calls.append("record")

    def wait(self, _: object) -> None:
        self._calls.append("wait")

    def synchronize(self) -> None:
        self._calls.append("synchronize")


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """Replace torch.cuda's graphs, streams and events for a test."""
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph", gpu.graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: None)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, nullcontext)
    return gpu
