"""CUDA graphs without a GPU: a stand-in records a pass's operators, and replays them in the same memory."""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from headroom.models import graphs
from headroom.models.batch import PackedBatch, pack
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.ops.torch import CudaOps, MaskPolicy
from headroom.models.selection import RowMasks
from tests.checkpoints import random_model
from tests.models.reference import CPU, network_of, random_pair, reference

MODEL = random_model(11)


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

    def replay(self) -> None:
        assert self.gpu is not None
        if self.gpu.launch_fails:
            self.gpu.launch_fails -= 1
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
    """Stands in for torch.cuda's graphs, and for its rules of which pools may be captured into.

    failure: what the next captures raise, and at which end. launch_fails: how many next replays find no
    memory.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self.launch_fails = 0
        self.captures = 0
        self._failed: list[object] = []
        self._graphs: dict[int, tuple[object, list[weakref.ref[Recording]]]] = {}

    @contextmanager
    def graph(self, graph: Recording, *, pool: object, **_: object) -> Iterator[None]:
        self.captures += 1
        graph.gpu = self
        if any(pool is failed for failed in self._failed):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        _, sharing = self._graphs.setdefault(id(pool), (pool, []))
        if sharing and all(other() is None for other in sharing):
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        try:
            with graph:
                yield
                if self.failure is not None:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
            sharing.append(weakref.ref(graph))
        finally:
            if self.failure == "at the end":
                self._failed.append(pool)
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph", gpu.graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: None)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, nullcontext)
    monkeypatch.setattr(graphs, "PAUSE", 4)
    return gpu


TOKENS = 32
"""The tokens of every pack of two pairs."""

LONGEST = 15
"""The tokens of the longest sequence of them."""


def pairs_of(seed: int) -> list[EncodedPair]:
    """Two pairs; those of every seed fill packs of one shape. The first has LONGEST tokens."""
    rng = np.random.default_rng(seed)
    return [random_pair(rng, int(length), 180) for length in (LONGEST, rng.integers(9, LONGEST))]


def network() -> Network:
    return network_of(MODEL, ops=CapturedOps(CPU, torch.float32))


def scores(network: Network, seed: int, masks: RowMasks | None = None, *, sliced: bool = False) -> np.ndarray:
    return network.forward(pack(pairs_of(seed), device=CPU), masks, sliced=sliced).numpy()


def assert_right(network: Network, seed: int, weights: np.ndarray | None = None) -> None:
    """Compare with transformers. weights: (layers, heads), or (2, layers, heads)."""
    by_row = None if weights is None else np.broadcast_to(weights, (2, 3, 4)).copy()
    expected = reference(MODEL, pairs_of(seed), torch.float32, by_row)
    found = scores(network, seed, None if weights is None else RowMasks(weights))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def without_graphs(monkeypatch: pytest.MonkeyPatch, score: Callable[[], np.ndarray]) -> np.ndarray:
    """Return scores of the same selection, computed without a graph."""
    with monkeypatch.context() as patched:
        patched.setattr(graphs.Graphs, "logits", lambda *_, **__: None)
        return score()


HALF = np.tile(np.array([1, 1, 0, 0], np.float32), (3, 1))
FRACTIONS = np.array([[1, 0.5, 0, 1], [0, 0, 0, 0], [0.25, 1, 1, 1]], np.float32)
AD_HOC: dict[str, np.ndarray] = {
    "half of the heads": HALF,
    "others": 1 - HALF,
    "fractions, and a layer without heads": FRACTIONS,
    "one head": np.pad(np.zeros((3, 3), np.float32), ((0, 0), (1, 0)), constant_values=1),
    "by row": np.stack([HALF, FRACTIONS]),
    "by row, in one layer": np.stack([np.ones((3, 4), np.float32), np.eye(3, 4, dtype=np.float32)]),
}


def test_packs_of_one_shape_are_captured_once_and_replayed(gpu: Gpu) -> None:
    model = network()
    for seed in range(6):
        assert_right(model, seed)
    assert gpu.captures == 1


def test_a_network_that_is_replaced_frees_its_memory_without_a_collection(gpu: Gpu) -> None:
    """A replica collects garbage rarely, and leaves out what was there at its start."""
    model = network()
    for seed in range(3):
        scores(model, seed)
    assert gpu.captures == 1
    reference_to_it = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert reference_to_it() is None
    finally:
        gc.enable()


def test_all_masks_of_single_requests_share_one_graph_and_copy_no_weights(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated mask was cut out, and then never had a graph again."""
    model = network()
    for seed in range(3):
        for weights in AD_HOC.values():
            assert_right(model, seed, weights)
            score = partial(scores, model, seed, RowMasks(weights))
            np.testing.assert_array_equal(score(), without_graphs(monkeypatch, score))
    assert gpu.captures == 1
    assert model.selector.cache.nbytes == 0
    assert model.graphs is not None
    assert model.graphs.counts.replayed == 6 * len(AD_HOC) - 1
    for seed in range(3):
        assert_right(model, seed)  # no mask: nothing is multiplied, so this is another graph
    assert gpu.captures == 2


def test_masks_that_skip_layers_or_switch_units_off_have_graphs_of_their_own(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    off = np.random.default_rng(3).random((3, model.config.intermediate_size)) < 0.3
    for units_off in (None, off, ~off):
        for skipped in ((), (1,)):
            mask = RowMasks(FRACTIONS, skipped, None if units_off is None else units_off)
            for seed in range(4):
                score = partial(scores, model, seed, mask)
                found = score()
                np.testing.assert_array_equal(found, without_graphs(monkeypatch, score))
                plain = network_of(MODEL).forward(pack(pairs_of(seed), device=CPU), mask)
                np.testing.assert_allclose(found, plain, atol=1e-5)
    assert gpu.captures == 4  # whichever units are off
    assert model.selector.cache.nbytes == 0


@pytest.mark.parametrize("weights", [HALF, HALF / 2], ids=["binary", "fractions"])
def test_a_sliced_variant_has_a_graph_of_its_cut_weights(
    gpu: Gpu, weights: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    for seed in range(4):
        score = partial(scores, model, seed, RowMasks(weights), sliced=True)
        found = score()
        np.testing.assert_array_equal(found, without_graphs(monkeypatch, score))
        expected = reference(MODEL, pairs_of(seed), torch.float32, np.stack([weights] * 2))
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert gpu.captures == 1
    assert model.selector.cache.nbytes > 0


def test_variants_that_are_cut_alike_have_graphs_of_their_own(gpu: Gpu) -> None:
    """Their packs, and whether heads have weights, are the same; what differs is which weights they read."""
    model = network()
    off = np.zeros((3, model.config.intermediate_size), np.bool_)
    off[:, ::2] = True
    everything = np.ones((3, 4), np.float32)
    variants = [
        RowMasks(HALF),
        RowMasks(1 - HALF),
        RowMasks(everything, (), off),
        RowMasks(everything, (), ~off),
    ]
    for seed in range(3):
        for mask in variants:
            plain = network_of(MODEL).forward(pack(pairs_of(seed), device=CPU), mask)
            np.testing.assert_allclose(scores(model, seed, mask, sliced=True), plain, atol=1e-5)
    assert gpu.captures == len(variants)


def test_packs_of_other_shapes_have_graphs_of_their_own(gpu: Gpu) -> None:
    """Also if they have as many sequences, or as many tokens, as another shape; 16 sequences fill one."""
    model = network()
    rng = np.random.default_rng(4)
    shapes = set()
    assert model.graphs is not None
    for lengths in ([14, 14], [14, 30], [3] * 16, [30, 30], [3] * 17):
        for _ in range(3):
            pairs = [random_pair(rng, length, 180) for length in lengths]
            batch = pack(pairs, device=CPU)
            if batch.shape not in shapes:
                assert not model.graphs.may_replay(batch)
            shapes.add(batch.shape)
            by_row = rng.random((len(pairs), 3, 4)).astype(np.float32)
            for weights in (None, by_row):
                found = model.forward(batch, None if weights is None else RowMasks(weights))
                expected = reference(MODEL, pairs, torch.float32, weights)
                np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
    assert shapes == {(32, 16), (48, 16), (64, 16), (64, 32)}
    assert gpu.captures == 2 * len(shapes)


def test_the_least_recently_used_graph_makes_room(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "CAPACITY", 2)
    model = network()
    masks = [None, RowMasks(FRACTIONS), RowMasks(FRACTIONS, (1,))]
    for mask in (*masks[:2], *masks[:2], masks[0]):  # the graph of FRACTIONS is now the older one
        scores(model, 0, mask)
    assert gpu.captures == 2
    for _ in range(2):
        scores(model, 0, masks[2])
    scores(model, 0)
    scores(model, 0, masks[1])  # its graph is gone, so this pass is computed without one
    assert model.graphs is not None
    assert model.graphs.counts == graphs.Counts(captured=3, replayed=5)


def test_a_replay_copies_a_pack_once_and_its_masks_once(gpu: Gpu) -> None:
    """Every operator besides is a launch that Python pays for."""
    model = network()
    masks = RowMasks(AD_HOC["by row"])
    for _ in range(2):
        scores(model, 0, masks)
    batch = pack(pairs_of(1), device=CPU)
    with Operators() as operators:
        model.forward(batch, masks)
    # The masks are gathered by row, and copied to where the graph reads them.
    assert operators.names == ["aten::index_select", "aten::copy_", "aten::copy_"]
    assert gpu.captures == 1


class Operators(TorchDispatchMode):
    """Records the operators that compute something; a view is none, nor is an allocation."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not func.is_view and func is not torch.ops.aten.empty.memory_format:
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_large_packs_are_captured_when_their_shape_has_come_often(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "SMALL_PACK", TOKENS - 1)
    monkeypatch.setattr(graphs, "LARGE_COMES", 5)
    model = network()
    by_row = RowMasks(np.stack([HALF, 1 - HALF]))
    for seed in range(4):
        assert_right(model, seed)
    assert gpu.captures == 0
    assert_right(model, 4)
    assert gpu.captures == 1
    for seed in range(7):
        score = partial(scores, model, seed, by_row)
        np.testing.assert_array_equal(score(), without_graphs(monkeypatch, score))
    assert gpu.captures == 2
    # A mask of a single request is cut out when it comes again, which pays for a large pack.
    for seed in range(7):
        assert_right(model, seed, HALF)
    assert gpu.captures == 2
    assert model.selector.cache.nbytes > 0


def test_the_largest_small_pack_is_captured_at_its_second_pass_and_nothing_is_cut(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "SMALL_PACK", TOKENS)
    monkeypatch.setattr(graphs, "LONGEST", ())
    model = network()
    for seed in range(2):
        assert_right(model, seed, HALF)
    assert gpu.captures == 1
    for seed in range(4):
        assert_right(model, seed, HALF)
    assert model.selector.cache.nbytes == 0


@pytest.mark.parametrize(
    ("bounds", "captures"), [((LONGEST, 20), 1), ((8, LONGEST), 1), ((8, LONGEST - 1), 0)]
)
def test_a_large_pack_of_longer_sequences_than_a_graph_computes_gets_none(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, int], captures: int
) -> None:
    monkeypatch.setattr(graphs, "SMALL_PACK", 16)
    monkeypatch.setattr(graphs, "LARGE_COMES", 2)
    monkeypatch.setattr(graphs, "LONGEST", bounds)
    model = network()
    for seed in range(4):
        assert_right(model, seed)
    assert gpu.captures == captures


def test_a_large_pack_with_longer_sequences_has_a_graph_of_its_own(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph reads no more of a sequence than the longest one that it was captured for."""
    monkeypatch.setattr(graphs, "SMALL_PACK", 16)
    monkeypatch.setattr(graphs, "LARGE_COMES", 2)
    monkeypatch.setattr(graphs, "LONGEST", (LONGEST, 25))
    model = network()
    rng = np.random.default_rng(5)
    for lengths in ([LONGEST, LONGEST], [25, 5], [LONGEST, LONGEST]):
        for _ in range(3):
            pairs = [random_pair(rng, length, 180) for length in lengths]
            expected = reference(MODEL, pairs, torch.float32, None)
            batch = pack(pairs, device=CPU)
            assert batch.shape == (TOKENS, 16)
            np.testing.assert_allclose(model.forward(batch).numpy(), expected, atol=1e-4)
    assert gpu.captures == 2


@pytest.mark.parametrize("failure", ["inside", "at the end"])
def test_a_capture_without_memory_is_tried_again_when_there_may_be_some(
    gpu: Gpu, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is tried at every pass would take as long as three of them."""
    model = network()
    gpu.failure = failure
    for seed in range(5):
        assert_right(model, seed)
    assert gpu.captures == 1
    assert_right(model, 5)
    assert gpu.captures == 2
    gpu.failure = None
    for seed in range(6, 20):
        assert_right(model, seed)
    assert gpu.captures == 3
    assert model.graphs is not None
    assert model.graphs.counts == graphs.Counts(captured=1, replayed=7, without_memory=2)
    assert not caplog.records


def test_other_graphs_go_on_when_one_finds_no_memory(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    for seed in range(3):
        assert_right(model, seed)
    gpu.failure = "at the end"
    for seed in range(3):
        assert_right(model, seed, HALF)
        assert_right(model, seed)
    assert model.graphs is not None
    assert model.graphs.counts == graphs.Counts(captured=1, replayed=5, without_memory=1)
    gpu.failure = None
    for seed in range(3):
        assert_right(model, seed, HALF)
        assert_right(model, seed)
    assert model.graphs.counts.captured == 2
    assert not caplog.records


def test_a_graph_that_cannot_be_launched_is_dropped_and_captured_again(gpu: Gpu) -> None:
    model = network()
    for seed in range(3):
        assert_right(model, seed)
    gpu.launch_fails = 1
    for seed in range(12):
        assert_right(model, seed)
    assert model.graphs is not None
    assert model.graphs.counts.captured == 2
    assert model.graphs.counts.without_memory == 1


def test_a_pass_without_memory_frees_the_graphs_and_later_ones_are_captured(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is then tried in halves, and the graphs' memory must not be what is missing."""
    model = network()
    for seed in range(3):
        assert_right(model, seed)
    assert model.graphs is not None

    def full(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    with monkeypatch.context() as patched:
        patched.setattr(model.ops, "attention", full)
        with pytest.raises(torch.OutOfMemoryError):
            scores(model, 0, RowMasks(HALF))
    assert not model.graphs._of_thread.graphs
    for seed in range(12):
        assert_right(model, seed)
    assert gpu.captures == 2
    assert model.graphs.counts.captured == 2
