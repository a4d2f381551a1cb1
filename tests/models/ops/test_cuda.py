"""The operators of a GPU, on the CPU: `FakeGpu` stands in for streams and memory, torch's "meta" device for a
device whose values the host must not read."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from headroom.models.batch import Beginning, PackedBatch, pack
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.classifier import Classifier
from headroom.models.masks.head_mask import HeadMask
from headroom.models.network import Bert, Network
from headroom.models.ops import choose_on_gpu
from headroom.models.ops.torch import CudaOps, TorchOps
from headroom.models.ops.trial import disagreement
from headroom.models.ops.varlen import VarlenAttention
from headroom.models.selection import RowMasks
from tests.checkpoints import random_model
from tests.families import model_of
from tests.models.ops.fake_gpu import FakeGpu
from tests.models.reference import (
    CPU,
    logits_of,
    network_of,
    random_pair,
    random_weights,
)
from tests.modernberts import random_modernbert
from tests.own_code import write_own_code

pytestmark = pytest.mark.more

META = torch.device("meta")
LEFT, RIGHT = (np.tile(np.array(mask, np.float32), (3, 1)) for mask in ([1, 1, 0, 0], [0, 0, 1, 0.5]))
"""Masks of the random model's 3 × 4 heads."""


class FakeGpuOps(CudaOps):
    """A GPU's operators, on streams of a FakeGpu."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__(CPU, torch.float32)
        self._gpu = gpu

    def synchronize(self) -> None:
        self._gpu.wait()


@functools.cache
def plain() -> Bert:
    """The random model on the CPU."""
    return network_of(random_model(11))


def network_with(ops: TorchOps) -> Bert:
    """The random model, laid out for a GPU."""
    return Bert(plain().config, plain().tensors(), device=ops.device, dtype=ops.dtype, ops=ops)


def pairs_of(count: int = 5, vocabulary: int = 180, longest: int = 40) -> list[EncodedPair]:
    rng = np.random.default_rng(1)
    return [random_pair(rng, int(length), vocabulary) for length in rng.integers(4, longest, count)]


def scores(network: Bert, mask: np.ndarray | None = None) -> np.ndarray:
    """Logits under a mask whose heads are cut out at once."""
    batch = pack(pairs_of(), device=CPU)
    return network.forward(batch, None if mask is None else RowMasks(mask), sliced=True).numpy(force=True)


def assert_close(network: Bert, mask: np.ndarray | None, gpu: FakeGpu, stream: str) -> None:
    """Score on a stream and compare with the CPU."""
    expected = logits_of(plain(), pairs_of(), mask)
    with gpu.on(stream):
        ours = scores(network, mask)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def keep_one_set(network: Bert) -> None:
    """Let the cache hold one set of cut-down weights a layer, so that the next one evicts it."""
    size = max(layer.heads.only([0, 1]).nbytes for layer in network.layers if layer.heads)
    network.selector.cache.max_bytes = 3 * size


@pytest.fixture(params=["behind", "ahead"])
def gpu(request: pytest.FixtureRequest) -> FakeGpu:
    return FakeGpu(request.param)


def test_a_network_is_ready_for_every_stream_when_it_is_made(gpu: FakeGpu) -> None:
    config, tensors = plain().config, plain().tensors()
    with gpu.on("loading"):
        copied = {name: tensor + 0 for name, tensor in tensors.items()}
        network = Bert(config, copied, device=CPU, dtype=torch.float32, ops=FakeGpuOps(gpu))
    assert_close(network, None, gpu, "other")


@pytest.mark.parametrize("mask", [RIGHT, np.stack([LEFT, RIGHT, LEFT, RIGHT, LEFT])])
def test_every_stream_scores_as_the_cpu_does(gpu: FakeGpu, mask: np.ndarray | None) -> None:
    network = network_with(FakeGpuOps(gpu))
    for stream in ("one", "other", "one"):
        assert_close(network, mask, gpu, stream)


def test_scores_do_not_read_cut_weights_that_were_evicted_meanwhile(gpu: FakeGpu) -> None:
    network = network_with(FakeGpuOps(gpu))
    keep_one_set(network)

    def evict() -> None:
        with gpu.on("one"):
            assert np.isfinite(scores(network, RIGHT)).all()

    for _ in range(3):  # the set comes back, and is cut again
        assert_close(network, LEFT, gpu, "one")
        gpu.before_wait = evict
        assert_close(network, LEFT, gpu, "other")
        assert gpu.before_wait is None


class Copies(TorchDispatchMode):
    """Records copies from the host to the meta device, which has no values: reading one raises."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[bool] = []
        self.indexed_by_lists = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device == META and args and isinstance(args[0], Tensor):
            if str(func).startswith(("aten.to.", "aten._to_copy.")) and args[0].device == CPU:
                self.waited.append(not ((kwargs or {}).get("non_blocking") or True in args[1:]))
            if func is torch.ops.aten.index.Tensor:
                self.indexed_by_lists += any(i is not None and i.device == CPU for i in args[1])
        return result


class MadeOnDevice(TorchFunctionMode):
    """Counts tensors that are made on the meta device of numbers of the host: a copy that is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += func in (torch.tensor, torch.as_tensor) and result.device == META
        return result


def structured(network: Network, *forms: dict[str, object]) -> RowMasks | None:
    """Return the masks of these JSON forms: one for each row, or a single one for all."""
    shape = {"layers": network.config.num_layers, "heads": 4, "units": network.config.intermediate_size}
    of_form = {str(form): HeadMask.parse(form, **shape) for form in forms}  # type: ignore[arg-type]
    masks = [of_form[str(form)] for form in forms]
    return RowMasks.of(masks if masks[1:] else masks[0])


SKIP: dict[str, object] = {"skip": [1]}
UNITS: dict[str, object] = {"units": "0.0-7,2.*"}
BOTH = SKIP | UNITS
MASKED: dict[str, Callable[[Network], Any]] = {
    "none": lambda _: None,
    "heads by row": lambda n: RowMasks(random_weights(np.random.default_rng(2), 5, n.config.num_layers, 4)),
    "heads cut": lambda n: RowMasks(np.tile(LEFT[:1] / 2, (n.config.num_layers, 1))),
    "layers": lambda n: structured(n, SKIP),
    "heads by row, layers and units": lambda n: structured(n, *[BOTH, BOTH | {"off": [[0, 1]]}] * 2, BOTH),
    "units cut": lambda n: structured(n, UNITS),
}


DECODERS = {"qwen3": "loop", "gemma": "loop", "qwen3, varlen": "varlen", "gemma, varlen": "varlen"}


@pytest.mark.parametrize("masked", MASKED)
@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2", *DECODERS])
def test_a_pass_reads_no_value_and_waits_for_no_copy(family: str, masked: str) -> None:
    varlen = VarlenAttention.of_torch() if DECODERS.get(family) == "varlen" else None
    model = random_model(11) if family == "bert" else model_of(family.partition(",")[0], 11)
    network = network_of(model, torch.bfloat16, device=META, ops=CudaOps(META, torch.bfloat16, varlen))
    mask, cut = MASKED[masked](network), masked.endswith("cut")

    def batch() -> PackedBatch:
        shared = [Beginning("query", 3)] * 3 + [Beginning("other", 2)] * 2
        return pack(pairs_of(), device=META, beginnings=shared if family in DECODERS else None)

    if cut:
        network.forward(batch(), mask, sliced=True)  # cutting waits; it is done once
    with Copies() as copies, MadeOnDevice() as made:
        network.forward(batch(), mask, sliced=cut)
    assert copies.waited
    assert not any(copies.waited)
    assert copies.indexed_by_lists == 0
    assert made.count == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operators_that_compute_something_else_are_found_out(dtype: torch.dtype) -> None:
    class OneHead(CudaOps):
        def _attend(self, query: Tensor, *arguments: Any) -> Tensor:
            return super()._attend(query, *arguments)[:, :1].expand_as(query)

    assert disagreement(CudaOps(CPU, dtype), 64) is None
    assert disagreement(OneHead(CPU, dtype), 64) == f"attention in {dtype} is not what plain torch computes"


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2", "jina-bert", "qwen3"])
def test_a_network_names_what_it_computes_and_only_that_is_tried(
    family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    computed = {"maps"}

    class Watched(CudaOps):
        def attention(self, *arguments: Any) -> Tensor:
            positions = arguments[-1]
            part = "attention"
            if positions.relative is not None:
                part = "slopes" if positions.relative.tables is None else "tables"
            computed.add(part)
            return super().attention(*arguments)

        def causal(self, *arguments: Any) -> Tensor:
            computed.add("causal")
            return super().causal(*arguments)

    tried = []

    def choose(_: object, device: torch.device, dtype: torch.dtype, parts: Sequence[str]) -> CudaOps:
        tried.append(parts)
        return Watched(device, dtype)

    monkeypatch.setattr("headroom.models.network.choose", choose)
    if family == "jina-bert":
        network = Classifier.load(write_own_code(tmp_path, family), "cpu", "float32").network
    else:
        network = network_of(model_of(family, 11))
    logits_of(network, pairs_of(vocabulary=90))
    assert [computed] == list(map(set, tried))
    computed.clear()
    assert disagreement(network.ops, 16, network.parts) is None
    assert computed == set(network.parts) - {"maps"}


def test_a_gpu_tries_what_it_is_asked_to_and_a_decoders_attention_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = list[Sequence[str]]()
    monkeypatch.setattr("headroom.models.ops.disagreement", lambda *_, parts, **__: tried.append(parts))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setitem(sys.modules, "headroom.models.ops.triton", SimpleNamespace(TritonOps=CudaOps))
    monkeypatch.setattr(VarlenAttention, "of_torch", lambda: VarlenAttention(Mock()))
    for parts in (["attention", "maps"], ["tables", "maps"], ["causal", "maps"]):
        choose_on_gpu(16, CPU, torch.bfloat16, parts)
    assert [list(parts) for parts in tried] == [
        ["attention", "maps"],
        ["tables", "maps"],
        ["causal"],
        ["maps"],
    ]


@pytest.mark.parametrize(
    ("family", "pooling"), [("bert", "cls"), ("modernbert", "cls"), ("modernbert", "mean")]
)
def test_what_fills_a_pack_up_reaches_no_score(family: str, pooling: str) -> None:
    """The stand-in leaves NaN there, as a GPU leaves what was in its memory."""

    class Spoiling(CudaOps):
        def attention(self, projected: Tensor, batch: PackedBatch, *arguments: Any) -> Tensor:
            context = super().attention(projected, batch, *arguments)
            context[batch.rows if batch.read == "first" else int(batch.lengths.sum()) :] = torch.nan
            return context

    model = random_model(11) if family == "bert" else random_modernbert(11, classifier_pooling=pooling)
    exact, ours = network_of(model), network_of(model, ops=Spoiling(CPU, torch.float32))
    pairs = pairs_of()
    batch = pack(pairs, device=CPU)
    assert len(batch.ids) > batch.lengths.sum()
    assert len(batch.first_token) > batch.rows
    for name, masked in MASKED.items():
        masks = masked(exact)
        expected, found = (one.forward(batch, masks).numpy() for one in (exact, ours))
        np.testing.assert_allclose(found, expected, atol=2e-5, err_msg=name)
