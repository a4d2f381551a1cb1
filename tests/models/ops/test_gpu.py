"""The network on a real GPU. `make gpu` runs these tests; they are skipped on machines without one."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from models.batch import pack
from models.checkpoint.tokenizer import EncodedPair
from models.network import Bert, Network
from models.networks import build
from models.ops.cuda import CudaOps, VarlenOps
from tests.checkpoints import random_model
from tests.models.reference import logits_of, network_of, random_pair, random_weights
from tests.modernberts import random_modernbert

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
BOUNDS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 0.1}
"""Largest error of a logit, as a share of the largest logit."""

HALVES = np.tile(np.array([1, 1, 0, 0], np.float32), (3, 1))
OTHERS = np.tile(np.array([0, 0, 1, 0.5], np.float32), (3, 1))


def pairs_of(count: int = 40, vocabulary: int = 180) -> list[EncodedPair]:
    rng = np.random.default_rng(10)
    return [random_pair(rng, int(length), vocabulary) for length in rng.integers(2, 64, count)]


def networks(dtype: torch.dtype, hidden: int = 64) -> tuple[Bert, Network]:
    """The same random model on the CPU in float32, and on the GPU."""
    plain = network_of(random_model(10, hidden_size=hidden, initializer_range=0.1))
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    return plain, build(plain.config, plain.tensors(), device=device, dtype=dtype)


def on_gpu(network: Network, pairs: list[EncodedPair], mask: np.ndarray | None, sliced: bool) -> np.ndarray:
    batch = pack(pairs, device=network.device)
    return network.forward(batch, mask, sliced=sliced).numpy(force=True)


def assert_close(ours: np.ndarray, exact: np.ndarray, dtype: torch.dtype) -> None:
    assert np.abs(ours - exact).max() <= BOUNDS[dtype] * np.abs(exact).max()


@pytest.mark.parametrize("hidden", [64, 104])  # head sizes 16 and 26; the kernel computes only the first
@pytest.mark.parametrize("dtype", BOUNDS)
def test_scores_are_those_of_the_cpu(dtype: torch.dtype, hidden: int) -> None:
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no bfloat16")
    plain, network = networks(dtype, hidden)
    fits = hidden == 64 and dtype != torch.float32 and torch.cuda.get_device_capability() >= (8, 0)
    assert type(network.ops) is (VarlenOps if fits else CudaOps)
    pairs = pairs_of()
    rows = random_weights(np.random.default_rng(3), len(pairs), 3, 4)
    for mask in (None, rows, rows[0], HALVES):
        exact = logits_of(plain, pairs, mask)
        for sliced in (False, False, mask is HALVES):  # computed, cut to the live heads, cut at once
            assert_close(on_gpu(network, pairs, mask, sliced), exact, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_scores_as_on_the_cpu(dtype: torch.dtype, pooling: str) -> None:
    model = random_modernbert(11, classifier_pooling=pooling, initializer_range=0.1)
    plain, pairs = network_of(model), pairs_of(vocabulary=300)
    network = network_of(model, device=torch.device("cuda", 0), dtype=dtype)
    assert_close(on_gpu(network, pairs, None, False), logits_of(plain, pairs), dtype)


def test_threads_with_streams_of_their_own_may_evict_each_others_weights() -> None:
    plain, network = networks(torch.float16)
    size = max(layer.heads.only([0, 1]).nbytes for layer in network.layers if layer.heads)
    network.selector.cache.max_bytes = 3 * size
    pairs = pairs_of()
    exact = [logits_of(plain, pairs, mask) for mask in (HALVES, OTHERS)]

    def work(first: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(network.device)):
            for turn in range(first, first + 200):
                mask = (HALVES, OTHERS)[turn % 2]
                assert_close(on_gpu(network, pairs, mask, True), exact[turn % 2], torch.float16)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, (0, 1)))


def test_attention_has_the_same_bits_in_any_pack() -> None:
    _, network = networks(torch.float16)
    pairs = pairs_of()
    whole = pack(pairs, device=network.device)
    projected = torch.randn(len(whole.ids), 3 * 64, device=network.device, dtype=torch.float16)
    for first_only in (False, True):
        view = whole.of_first_tokens() if first_only else whole
        found = network.ops.attention(projected, view, 4)
        for row, start in enumerate(whole.first_token[: whole.rows].tolist()):
            alone = pack([pairs[whole.order[row]]], device=network.device, fill=False)
            end = start + int(whole.lengths[row])
            ours = network.ops.attention(
                projected[start:end], alone.of_first_tokens() if first_only else alone, 4
            )
            assert torch.equal(ours, found[row : row + 1] if first_only else found[start:end])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_pass_waits_for_nothing(dtype: torch.dtype) -> None:
    _, network = networks(dtype)
    pairs = pairs_of()
    mask = random_weights(np.random.default_rng(3), len(pairs), 3, 4)
    on_gpu(network, pairs, mask, False)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            batch = pack(pairs, device=network.device)
            logits = network.classify(network.pooled(batch, network.selector.select(mask)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert logits.isfinite().all()
