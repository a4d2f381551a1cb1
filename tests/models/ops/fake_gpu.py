"""A GPU for tests without one: work waits in streams, and freed memory is overwritten.

Inside `FakeGpu.on(stream)` every torch operator is put into that stream's queue instead of being computed.
Its result holds NaN until somebody waits for the stream. As on a GPU, a queued operator does not keep its
inputs alive: memory that Python has dropped is overwritten with NaN, in the order of the stream that
allocated it, and whatever reads it later reads NaN. What `torch.empty` returns counts as the host's memory,
and what was made outside of any stream, such as a network's weights, is never freed.

How far other streams have come when one is waited for is up to chance on a GPU. Here it is the test's choice:
`others="behind"`: they have computed only what somebody waited for. "ahead": they have computed everything.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map


class Memory(np.ndarray):
    """Bytes that a tensor's storage keeps alive; a weak reference tells when it is freed."""


class FakeGpu:
    """Streams by name. before_wait: called once, before the next wait, as if by another thread."""

    def __init__(self, others: str = "behind") -> None:
        self.before_wait: Callable[[], None] | None = None
        self.current = ""
        self._others = others
        self._queues: dict[str, list[Callable[[], None]]] = {}
        self._blocks: dict[int, tuple[np.ndarray, weakref.ref[Memory]]] = {}
        """The memory of each allocated block, by its address."""

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        """Queue the operators of this thread in a stream."""
        before, self.current = self.current, stream
        try:
            with _disable_current_modes(), _Queued(self):
                yield
        finally:
            self.current = before

    def wait(self) -> None:
        """Compute all that the current stream holds, as waiting for an event recorded in it does."""
        act, self.before_wait = self.before_wait, None
        if act is not None:
            act()
        with _disable_current_modes():
            if self._others == "ahead":
                for stream in [name for name in self._queues if name != self.current]:
                    self._run(stream)
            self._run(self.current)

    def _run(self, stream: str) -> None:
        queue = self._queues.get(stream, [])
        while queue:
            queue.pop(0)()

    def enqueue(
        self, operator: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Queue an operator; return its result, whose values are not there yet."""
        with _disable_current_modes():
            if operator is torch.ops.aten.empty.memory_format:
                return operator(*arguments, **named)
            work = tree_map(self._without_owner, (tuple(arguments), dict(named)))
            if operator._schema.is_mutable:  # type: ignore[attr-defined]
                self._queue().append(lambda: operator(*work[0], **work[1]))
                return arguments[0]
            shapes = operator(*arguments, **named)  # only to learn what comes out
            if _storages(shapes) & _storages(arguments):  # a view
                return shapes
            result = tree_map(lambda out: self._allocated(out) if isinstance(out, Tensor) else out, shapes)
            outputs = tree_map(self._without_owner, result)

            def compute() -> None:
                computed = operator(*work[0], **work[1])
                tree_map(lambda out, value: isinstance(out, Tensor) and out.copy_(value), outputs, computed)

            self._queue().append(compute)
            return result

    def _queue(self) -> list[Callable[[], None]]:
        return self._queues.setdefault(self.current, [])

    def _allocated(self, like: Tensor) -> Tensor:
        """Return a contiguous tensor of this shape and dtype in new memory, which holds NaN."""
        raw = np.full(max(1, like.numel()) * like.element_size(), 0xFF, np.uint8)
        owner = raw.view(Memory)
        queue, address = self._queue(), raw.ctypes.data

        def freed(_: object) -> None:
            def overwrite() -> None:
                raw.fill(0xFF)
                self._blocks.pop(address, None)

            queue.append(overwrite)

        self._blocks[address] = (raw, weakref.ref(owner, freed))
        return torch.from_numpy(owner)[: like.numel() * like.element_size()].view(like.dtype).view(like.shape)

    def _without_owner(self, value: Any) -> Any:
        """Return a tensor on the same memory that does not keep it allocated; other values as they are."""
        if not isinstance(value, Tensor):
            return value
        block = self._blocks.get(value.untyped_storage().data_ptr())
        if block is None:
            return value
        whole = torch.from_numpy(block[0]).view(value.dtype)
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def _storages(values: Any) -> set[int]:
    return {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}


class _Queued(TorchDispatchMode):
    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._gpu.enqueue(func, args, kwargs or {})
