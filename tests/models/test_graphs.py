"""CUDA graphs without a GPU: a stand-in records a pass's operators, and replays them in the same memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headroom.models import graphs
from headroom.models.batch import PackedBatch, pack
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.ops.torch import CudaOps
from tests.checkpoints import random_model
from tests.models.reference import CPU, network_of, random_pair, reference

MODEL = random_model(11)


class CapturedOps(CudaOps):
    """A GPU's operators that read no length on the host."""

    supports_capture = True

    def attention(
        self, projected: Tensor, batch: PackedBatch, heads: int, weights: Tensor | None, _: object
    ) -> Tensor:
        query, key, value = projected.view(len(projected), 3, heads, -1).permute(1, 2, 0, 3)
        exists = torch.arange(len(projected)) < batch.offsets[-1]
        visible = (batch.row_of_token[:, None] == batch.row_of_token) & exists
        scores = query @ key.mT / query.shape[-1] ** 0.5
        context = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ value
        assert weights is None
        return batch.leaving(context.transpose(0, 1).flatten(1))


class Recording(TorchDispatchMode):
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Gpu:
    """Stands in for torch.cuda's graphs. failure: what the next captures raise, and at which end."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self.captures = 0

    @contextmanager
    def graph(self, graph: Recording, **_: object) -> Iterator[None]:
        self.captures += 1
        try:
            with graph:
                yield
                if self.failure is not None:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        finally:
            if self.failure == "at the end":
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph", gpu.graph)
    for name in ("Stream", "graph_pool_handle", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, nullcontext)
    monkeypatch.setattr(graphs, "PAUSE", 4)
    return gpu


def pairs_of(seed: int) -> list[EncodedPair]:
    """Two pairs; those of every seed fill packs of one shape."""
    rng = np.random.default_rng(seed)
    return [random_pair(rng, int(length), 180) for length in rng.integers(9, 16, 2)]


def assert_right(network: Network, seed: int) -> None:
    """Compare with transformers."""
    pairs = pairs_of(seed)
    expected = reference(MODEL, pairs, torch.float32)
    found = network.forward(pack(pairs, device=CPU)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_packs_of_one_shape_are_captured_once_and_replayed(gpu: Gpu) -> None:
    network = network_of(MODEL, ops=CapturedOps(CPU, torch.float32))
    for seed in range(6):
        assert_right(network, seed)
    assert gpu.captures == 1


@pytest.mark.parametrize("failure", ["inside", "at the end"])
def test_a_capture_without_memory_is_tried_again_when_there_may_be_some(
    gpu: Gpu, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is tried at every pass would take as long as three of them."""
    network = network_of(MODEL, ops=CapturedOps(CPU, torch.float32))
    gpu.failure = failure
    for seed in range(5):
        assert_right(network, seed)
    assert gpu.captures == 1
    assert_right(network, 5)
    assert gpu.captures == 2
    gpu.failure = None
    for seed in range(6, 20):
        assert_right(network, seed)
    assert gpu.captures == 3
    assert not caplog.records
